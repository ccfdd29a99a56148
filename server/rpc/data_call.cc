// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/data_call.h"

#include <algorithm>

#include "common/wire/direct_call.h"
#include "common/wire/limits.h"

namespace ballast {
namespace {

// A byte of a request that is no item of it becomes at most that many: 2 bytes may be an unknown field.
constexpr uint64_t kMostParsedBytes = 24;

// Smaller answers are written faster than another thread wakes.
constexpr uint64_t kMinBytesForAnotherThread = 64 << 10;

// Such answers of other clients' calls are written without another thread: less work than to wake one, but nobody's own
// answer should wait for many.
constexpr int kMostLentForOthers = 1;

// The call whose request this thread handles, and the answers that it has written for others meanwhile.
thread_local const void* handled_call = nullptr;
thread_local int lent_for_others = 0;

}  // namespace

std::array<DataPlane::Call::Method, 6> DataPlane::Call::Methods(DataPlane& plane) {
  // Values are set once, so the time of that is not measured.
  return {{{"/ballast.v1.ParameterService/Push", &Call::Push, &plane.phases_[0]},
           {"/ballast.v1.ParameterService/Pull", &Call::Pull, &plane.phases_[1]},
           {"/ballast.v1.ParameterService/PushPull", &Call::PushPull, &plane.phases_[2]},
           {"/ballast.v1.ParameterService/PushRows", &Call::PushRows, &plane.phases_[3]},
           {"/ballast.v1.ParameterService/PullRows", &Call::PullRows, &plane.phases_[4]},
           {"/ballast.v1.ParameterService/SetValues", &Call::SetValues, nullptr}}};
}

DataPlane::Call::Method DataPlane::Call::DirectMethod(DataPlane& plane, uint32_t number) {
  const auto methods = Methods(plane);
  return *std::find_if(methods.begin(), methods.end(),
                       [&](const Method& method) { return method.path == kDirectMethods[number]; });
}

void DataPlane::Call::BeginDirectSpan(const TraceContext& caller) {
  const bool traced = caller.span != 0 && (caller.trace_high | caller.trace_low) != 0;
  if (traced && plane_->tracing_ != nullptr) BeginSpan(caller);
}

void DataPlane::Call::BeginSpan(const TraceContext& caller) {
  span_ = std::make_unique<CallSpan>();
  span_->method = std::string(path_);
  span_->context = caller;
  span_->parent = caller.span;
  span_->context.span = NewSpanId();
  if (!plane_->tracing_->Records(caller)) return;
  span_->begin = absl::Now();
  timer_.KeepStays();
}

void DataPlane::Call::EndSpan() {
  if (!plane_->tracing_->Records(span_->context)) return;
  span_->end = absl::Now();
  span_->parts = timer_.TakeStays();
  plane_->tracing_->Add(std::move(*span_));
}

absl::Status DataPlane::Call::Admit(uint64_t request_bytes) {
  if (absl::Status access = plane_->access_->Check(Token(), Name(), ""); !access.ok()) return OnShard(access);
  if (absl::Status serving = plane_->serving_->Check(); !serving.ok()) return OnShard(serving);
  // Readers may only pull.
  const bool pulls = handler_ == &Call::Pull || handler_ == &Call::PullRows;
  if (pulls) as_worker_ = plane_->access_->Check(Token(), Name(), "", AccessRole::kWorker);
  absl::StatusOr<ByteBudget::Reservation> reserved = Budget().Reserve(
      request_bytes < kMaxMessageBytes / kMostParsedBytes ? ByteBudget::kCallBytes + kMostParsedBytes * request_bytes
                                                          : kMaxMessageBytes);
  if (reserved.ok()) reserved_ = *std::move(reserved);
  return reserved.status();
}

void DataPlane::Call::Handle(grpc::ByteBuffer& connection_part, std::vector<BufferPool::Buffer> memory_parts) {
  request_.Swap(&connection_part);
  memory_parts_ = std::move(memory_parts);
  uint64_t bytes = request_.Length();
  for (const BufferPool::Buffer& part : memory_parts_) bytes += part.bytes().size();
  if (span_ != nullptr) span_->request_bytes = bytes;
  if (handler_ == &Call::PushPull) response_bytes_ = bytes;
  const void* const before = std::exchange(handled_call, this);
  lent_for_others = 0;
  (this->*handler_)();
  handled_call = before;
}

void DataPlane::Call::Handle(grpc::ByteBuffer& connection_part, BufferPool::Buffer memory_part) {
  std::vector<BufferPool::Buffer> parts;
  parts.push_back(std::move(memory_part));
  Handle(connection_part, std::move(parts));
}

void DataPlane::Call::RunForClient(absl::AnyInvocable<void() &&> then, bool lends) {
  const bool own = handled_call == nullptr || handled_call == this;
  if (own || response_bytes_ < kMinBytesForAnotherThread) return std::move(then)();
  if (lends && TakesPieces() && lent_for_others < kMostLentForOthers) {
    ++lent_for_others;
    return std::move(then)();
  }
  RunLater(std::move(then));
}

void DataPlane::Call::EndWith(grpc::ByteBuffer response) {
  timer_.Enter(CallPhase::kSend);
  if (span_ != nullptr) span_->response_bytes = response.Length();
  Send(std::move(response));
}

void DataPlane::Call::End(const absl::Status& status) {
  DropRequest();
  const bool not_owner = ReasonOf(status) == v1::ERROR_REASON_NOT_OWNER;
  const absl::Status told = not_owner ? WithSubjects(status, {{"epoch", absl::StrCat(map_epoch_)}}) : status;
  if (span_ != nullptr) {
    span_->code = status.code();
    plane_->tracing_->LogFailure(*span_, Peer(), status);
  }
  Fail(told);
}

std::function<void(absl::Status)> DataPlane::Call::Ending(grpc::ByteBuffer response) {
  return [call = shared_from_this(), response = std::move(response)](const absl::Status& durable) mutable {
    if (!durable.ok()) return call->End(call->OnShard(durable));
    call->EndWith(std::move(response));
  };
}

void DataPlane::Call::SentInPieces() {
  if (values_reserved_ != nullptr) values_reserved_->Release();
  Sent();
}

void DataPlane::Call::Sent() {
  timer_.End();
  if (span_ != nullptr) EndSpan();
  reserved_.Release();
  values_reserved_.reset();
}

}  // namespace ballast
