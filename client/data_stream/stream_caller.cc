// SPDX-License-Identifier: Apache-2.0
#include "client/data_stream/stream_caller.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/wire/direct_call.h"
#include "common/wire/limits.h"
#include "grpcpp/support/slice.h"

namespace ballast {
namespace {

// Shorter than the time limit of most calls, so that one which begins need not wake the thread that receives to tell
// its deadline.
constexpr absl::Duration kLongestWait = absl::Seconds(1);
// Smaller payloads are copied from what the stream has read ahead.
constexpr uint64_t kLeastPlacedBytes = 32 << 10;

}  // namespace

void StreamCaller::Run() {
  const absl::Status why = stream_.Run(*this);
  absl::flat_hash_map<uint32_t, Call> calls;
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    calls.swap(calls_);
  }
  const grpc::Status status(grpc::UNAVAILABLE, absl::StrCat("the data stream has ended: ", why.message()));
  for (auto& [number, call] : calls) std::move(call.done)(status, {}, absl::Now());
}

std::optional<absl::Duration> StreamCaller::Help(absl::FunctionRef<bool()> ready, absl::Duration timeout) {
  const std::optional<absl::Duration> spent = stream_.Help(*this, ready, timeout);
  bool waiting = false;
  {
    absl::MutexLock lock(&mutex_);
    waiting = !calls_.empty();
  }
  // Their responses must not wait until this thread comes back.
  if (spent.has_value() && waiting) stream_.Return();
  return spent;
}

uint32_t StreamCaller::Begin(uint32_t method, const grpc::ByteBuffer& request, const TraceContext& span,
                             absl::Time deadline, Done done, PayloadPlaces places) {
  uint32_t number = 0;
  bool sooner = false;
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || calls_.size() >= credits_) return 0;
    // After four billion calls, numbers begin again.
    do {
      ++last_number_;
    } while (last_number_ == 0 || calls_.contains(last_number_));
    number = last_number_;
    calls_[number] = {deadline, false, std::move(done), std::move(places)};
    sooner = deadline < next_tick_;
  }
  StreamFrame frame;
  frame.number = number;
  frame.subject = method;
  frame.caller = span;
  stream_.Send(frame, request);
  if (sooner) stream_.Wake();
  return number;
}

void StreamCaller::Cancel(uint32_t number) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(number);
    if (found == calls_.end()) return;
    found->second.cancelled = true;
  }
  stream_.Wake();
}

StreamCaller::Done StreamCaller::Take(uint32_t number) {
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end()) return nullptr;
  Done done = std::move(found->second.done);
  calls_.erase(found);
  return done;
}

absl::StatusOr<char*> StreamCaller::Room(const StreamFrame& frame) {
  if (frame.kind != StreamFrame::Kind::kResponse) {
    return absl::InternalError("the server sent something other than a response");
  }
  if (frame.bytes > kMaxResponseBytes) {
    return absl::InternalError(
        absl::StrCat("response on a data stream: got ", frame.bytes, " bytes, want at most ", kMaxResponseBytes));
  }
  placed_.clear();
  {
    absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(frame.number);
    // The call may have ended at its deadline.
    if (found == calls_.end()) return nullptr;
    places_ = std::move(found->second.places);
  }
  arriving_ = frame.number;
  begun_ = absl::Now();
  response_ = buffers_.Get(frame.bytes, frame.lead);
  if (places_.find && frame.subject == grpc::OK && frame.bytes >= kLeastPlacedBytes) {
    scanner_.emplace(places_.field);
    scanned_ = 0;
  }
  return response_.data();
}

absl::Span<char> StreamCaller::Place(size_t received) {
  if (!scanner_.has_value()) return {};
  const size_t next = std::min<uint64_t>(scanner_->next_bytes(), response_.bytes().size() - received);
  const bool placed = !placed_.empty() && received < placed_.back().end;
  return {placed ? placed_.back().memory + (received - placed_.back().begin) : response_.data() + received, next};
}

void StreamCaller::Arrived(size_t bytes) {
  if (!scanner_.has_value()) return;
  const absl::string_view part = response_.bytes().substr(scanned_, bytes - scanned_);
  scanned_ = bytes;
  if (scanner_->in_payload()) return scanner_->SkipPayload(part.size());
  scanner_->Take(part);
  if (scanner_->in_payload()) FindPlace(bytes);
}

void StreamCaller::FindPlace(size_t received) {
  const uint64_t bytes = scanner_->next_bytes();
  if (bytes < kLeastPlacedBytes || bytes > response_.bytes().size() - received) return;
  char* const memory = places_.find(scanner_->index(), scanner_->item(), bytes);
  if (memory != nullptr) placed_.push_back({received, received + static_cast<size_t>(bytes), memory});
}

absl::Status StreamCaller::Received(const StreamFrame& frame) {
  scanner_.reset();
  Done done = Take(frame.number);
  if (!done) {
    response_ = {};
    return absl::OkStatus();
  }
  if (frame.subject == grpc::OK) {
    std::move(done)(grpc::Status::OK, TakeResponse(), begun_);
  } else {
    std::move(done)(DecodeDirectError(frame.subject, response_.bytes()), {}, begun_);
    response_ = {};
  }
  return absl::OkStatus();
}

grpc::ByteBuffer StreamCaller::TakeResponse() {
  // The slice's memory, which goes back to the pool.
  struct Kept {
    std::shared_ptr<StreamCaller> pool;
    BufferPool::Buffer buffer;
  };
  auto* const kept = new Kept{shared_from_this(), std::move(response_)};
  const size_t size = kept->buffer.bytes().size();
  const grpc::Slice whole(
      kept->buffer.data(), size, +[](void* data) { delete static_cast<Kept*>(data); }, kept);
  std::vector<grpc::Slice> slices;
  size_t at = 0;
  for (const Placed& placed : placed_) {
    slices.push_back(whole.sub(at, placed.begin));
    slices.emplace_back(placed.memory, placed.end - placed.begin, grpc::Slice::STATIC_SLICE);
    at = placed.end;
  }
  if (at < size || slices.empty()) slices.push_back(whole.sub(at, size));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<absl::Time> StreamCaller::Tick(absl::Time now) {
  absl::Time next = now + kLongestWait;
  std::vector<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [number, call] : calls_) {
      const bool late = now >= call.deadline;
      if (late || call.cancelled) {
        ended.push_back({number, std::move(call.done),
                         late ? grpc::Status(grpc::DEADLINE_EXCEEDED, "Deadline Exceeded") : grpc::Status::CANCELLED});
      } else {
        next = std::min(next, call.deadline);
      }
    }
    for (const Ended& call : ended) {
      calls_.erase(call.number);
      // The places belong to others once the call has ended.
      if (call.number == arriving_) scanner_.reset();
    }
    next_tick_ = next;
  }
  for (Ended& call : ended) {
    StreamFrame cancel;
    cancel.kind = StreamFrame::Kind::kCancel;
    cancel.number = call.number;
    stream_.Send(cancel, grpc::ByteBuffer());
    std::move(call.done)(call.status, {}, now);
  }
  return next;
}

}  // namespace ballast
