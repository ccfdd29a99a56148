// SPDX-License-Identifier: Apache-2.0
#include "common/data_stream/message_stream.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "common/wire/payload_message.h"

namespace ballast {
namespace {

// Small messages are read with one system call; of a large one, at most so many bytes are copied once more.
constexpr size_t kReadAheadBytes = 16 << 10;
// Most pieces that one write takes.
constexpr size_t kMaxPieces = 64;
// The longest time for which messages are left to a thread that has helped and does not come back.
constexpr absl::Duration kLongestAbsence = absl::Milliseconds(5);

absl::Status Lost(const std::string& why) {
  return WithReason(v1::ERROR_REASON_UNREACHABLE,
                    absl::UnavailableError(absl::StrCat("the other side is lost: ", why)));
}

// Returns the number of bytes before the first large payload; 0 if there is none.
uint32_t LeadOf(const std::vector<grpc::Slice>& message) {
  size_t lead = 0;
  for (const grpc::Slice& slice : message) {
    if (slice.size() > PayloadMessageWriter::kCopiedBytes) return static_cast<uint32_t>(lead);
    lead += slice.size();
  }
  return 0;
}

}  // namespace

MessageStream::MessageStream(std::unique_ptr<StreamSocket> socket, absl::Duration silence)
    : socket_(std::move(socket)),
      silence_(silence),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      buffer_(kReadAheadBytes),
      last_read_(absl::Now()) {}

MessageStream::~MessageStream() {
  if (wake_ >= 0) close(wake_);
}

absl::Status MessageStream::Run(MessageReceiver& receiver) {
  absl::Status why;
  if (wake_ < 0) why = absl::InternalError("no file for a data stream is left");
  while (why.ok()) {
    why = AwaitTurn();
    if (!why.ok()) break;
    const absl::StatusOr<std::optional<absl::Time>> next = Receive(receiver);
    if (!next.ok()) {
      why = next.status();
    } else if (next->has_value()) {
      why = Wait(**next, wait_).status();
    }
  }
  EndAll(why);
  // A thread in Help may be receiving.
  absl::MutexLock lock(&reading_);
  read_end_ = why;
  return why;
}

absl::Status MessageStream::AwaitTurn() {
  absl::MutexLock lock(&mutex_);
  while (end_status_.ok() && !returns_) {
    const absl::Duration left = HelpsLocked() ? kLongestAbsence : helped_at_ + kLongestAbsence - absl::Now();
    if (left <= absl::ZeroDuration()) break;
    // This thread may have taken what the other one waits for.
    if (!std::exchange(away_, true)) Ring();
    turn_.WaitWithTimeout(&mutex_, left);
  }
  away_ = returns_ = false;
  return end_status_;
}

std::optional<absl::Duration> MessageStream::Help(MessageReceiver& receiver, absl::FunctionRef<bool()> ready,
                                                  absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    if (!end_status_.ok() || HelpsLocked()) return std::nullopt;
    helper_ = std::this_thread::get_id();
  }
  const absl::Time end = absl::Now() + timeout;
  absl::Duration spent;
  absl::Status status;
  bool rung = false;
  while (status.ok()) {
    const absl::Time begun = absl::Now();
    const absl::StatusOr<std::optional<absl::Time>> next = Receive(receiver);
    status = next.status();
    if (!status.ok()) break;
    const bool received = !next->has_value();
    if (received) spent += absl::Now() - begun;
    // Looked at after `helper_` is set: who makes it true later also calls Notify.
    if (ready()) break;
    if (received) continue;
    if (begun >= end) break;
    const absl::StatusOr<bool> woken = Wait(std::min(**next, end), helpers_wait_);
    status = woken.status();
    rung |= woken.ok() && *woken;
    absl::MutexLock lock(&mutex_);
    status.Update(end_status_);
  }
  const bool unread = HoldsUnread();
  absl::MutexLock lock(&mutex_);
  last_helper_ = std::exchange(helper_, std::thread::id());
  helped_at_ = absl::Now();
  if (end_status_.ok()) end_status_ = status;
  if (away_) {
    if (!status.ok()) turn_.Signal();
  } else if (rung || unread || blocked_ || !status.ok()) {
    // The thread in Run may wait at the connection, which tells it nothing of that.
    Ring();
  }
  return spent;
}

void MessageStream::Notify() {
  {
    absl::MutexLock lock(&mutex_);
    if (!HelpsLocked() || helper_ == std::this_thread::get_id()) return;
  }
  Ring();
}

void MessageStream::ReturnLocked() {
  if (!away_ || HelpsLocked()) return;
  returns_ = true;
  turn_.Signal();
}

void MessageStream::Return() {
  absl::MutexLock lock(&mutex_);
  ReturnLocked();
}

void MessageStream::Release(Outgoing& message) {
  message.slices.clear();
  if (message.sent) std::move(message.sent)();
}

void MessageStream::EndAll(const absl::Status& why) {
  socket_->ShutDown();
  std::deque<Outgoing> unsent;
  std::vector<absl::AnyInvocable<void() &&>> tasks;
  {
    absl::MutexLock lock(&mutex_);
    // A thread in Flush uses the queue.
    mutex_.Await(absl::Condition(
        +[](bool* writing) { return !*writing; }, &writing_));
    ended_ = true;
    end_status_ = why;
    unsent.swap(queue_);
    tasks.swap(tasks_);
  }
  // A thread in Help waits.
  Ring();
  for (Outgoing& message : unsent) Release(message);
}

void MessageStream::Send(StreamFrame frame, const grpc::ByteBuffer& message, absl::AnyInvocable<void() &&> sent) {
  Outgoing outgoing;
  message.Dump(&outgoing.slices);
  frame.bytes = static_cast<uint32_t>(message.Length());
  frame.lead = LeadOf(outgoing.slices);
  outgoing.header = EncodeStreamFrame(frame);
  outgoing.sent = std::move(sent);
  bool ended = false;
  {
    absl::MutexLock lock(&mutex_);
    ended = ended_;
    if (!ended) {
      // The last one to help is likely to do so again.
      if (last_helper_ != std::this_thread::get_id()) ReturnLocked();
      queue_.push_back(std::move(outgoing));
      if (writing_ || blocked_) return;
      writing_ = true;
    }
  }
  if (!ended) return Flush();
  Release(outgoing);
}

std::vector<iovec> MessageStream::PiecesLocked() const {
  std::vector<iovec> pieces;
  for (const Outgoing& message : queue_) {
    size_t skip = message.next_sent;
    for (size_t i = message.next; i < message.pieces(); ++i) {
      const absl::string_view rest = message.Piece(i).substr(std::exchange(skip, 0));
      if (!rest.empty()) pieces.push_back({const_cast<char*>(rest.data()), rest.size()});
      if (pieces.size() == kMaxPieces) return pieces;
    }
  }
  return pieces;
}

std::vector<MessageStream::Outgoing> MessageStream::TakeSentLocked(size_t bytes) {
  std::vector<Outgoing> complete;
  while (!queue_.empty()) {
    Outgoing& front = queue_.front();
    while (front.next < front.pieces()) {
      const size_t rest = front.Piece(front.next).size() - front.next_sent;
      if (bytes < rest) {
        front.next_sent += bytes;
        return complete;
      }
      bytes -= rest;
      ++front.next;
      front.next_sent = 0;
    }
    complete.push_back(std::move(front));
    queue_.pop_front();
  }
  return complete;
}

void MessageStream::Flush() {
  while (true) {
    std::vector<iovec> pieces;
    {
      absl::MutexLock lock(&mutex_);
      pieces = PiecesLocked();
      if (pieces.empty()) {
        writing_ = false;
        return;
      }
    }
    // Others may add to the queue meanwhile, but only this thread removes from it.
    const absl::StatusOr<size_t> sent = socket_->Write(pieces);
    std::vector<Outgoing> complete;
    {
      absl::MutexLock lock(&mutex_);
      if (!sent.ok()) {
        if (end_status_.ok()) end_status_ = sent.status();
        writing_ = false;
      } else if (*sent > 0) {
        last_written_ = absl::Now();
        complete = TakeSentLocked(*sent);
      } else {
        if (!blocked_) last_written_ = absl::Now();
        blocked_ = true;
        writing_ = false;
      }
    }
    for (Outgoing& message : complete) Release(message);
    if (!sent.ok() || *sent == 0) return Wake();
  }
}

absl::StatusOr<bool> MessageStream::ReadHeader(MessageReceiver& receiver) {
  while (end_ - begin_ < kStreamFrameBytes) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    const absl::StatusOr<size_t> got = socket_->Read({buffer_.data() + end_, buffer_.size() - end_});
    if (!got.ok()) return got.status();
    if (*got == 0) return false;
    end_ += *got;
    last_read_ = absl::Now();
  }
  const absl::StatusOr<StreamFrame> frame = DecodeStreamFrame({buffer_.data() + begin_, kStreamFrameBytes});
  if (!frame.ok()) return frame.status();
  begin_ += kStreamFrameBytes;
  const absl::StatusOr<char*> to = receiver.Room(*frame);
  if (!to.ok()) return to.status();
  frame_ = *frame;
  to_ = *to;
  received_ = 0;
  in_message_ = true;
  return true;
}

absl::StatusOr<bool> MessageStream::ReadPart(MessageReceiver& receiver) {
  const size_t rest = frame_.bytes - received_;
  absl::Span<char> to;
  if (to_ != nullptr) {
    to = receiver.Place(received_);
    if (to.empty()) to = {to_ + received_, rest};
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
    // A few bytes, and those that are skipped, are read with what follows.
    const bool in_place = to.size() >= buffer_.size();
    const absl::StatusOr<size_t> got =
        in_place ? socket_->Read(to, absl::MakeSpan(buffer_)) : socket_->Read(absl::MakeSpan(buffer_));
    if (!got.ok()) return got.status();
    if (*got == 0) {
      socket_->WakeAt(rest);
      return false;
    }
    last_read_ = absl::Now();
    const size_t placed = in_place ? std::min(*got, to.size()) : 0;
    end_ = *got - placed;
    received_ += placed;
    if (placed > 0) receiver.Arrived(received_);
    return true;
  }
  const size_t part = std::min(to_ != nullptr ? to.size() : rest, end_ - begin_);
  if (to_ != nullptr) std::memcpy(to.data(), buffer_.data() + begin_, part);
  begin_ += part;
  received_ += part;
  if (to_ != nullptr) receiver.Arrived(received_);
  return true;
}

absl::StatusOr<bool> MessageStream::ReadMessage(MessageReceiver& receiver) {
  if (!in_message_) {
    const absl::StatusOr<bool> header = ReadHeader(receiver);
    if (!header.ok() || !*header) return header;
  }
  while (received_ < frame_.bytes) {
    const absl::StatusOr<bool> part = ReadPart(receiver);
    if (!part.ok() || !*part) return part;
  }
  socket_->WakeAt(1);
  in_message_ = false;
  if (absl::Status status = receiver.Received(frame_); !status.ok()) return status;
  return true;
}

absl::StatusOr<std::optional<absl::Time>> MessageStream::Receive(MessageReceiver& receiver) {
  absl::MutexLock lock(&reading_);
  if (!read_end_.ok()) return read_end_;
  RunTasks();
  const absl::StatusOr<bool> read = ReadMessage(receiver);
  if (!read.ok()) return read.status();
  if (*read) return std::nullopt;
  const absl::Time now = absl::Now();
  const absl::StatusOr<absl::Time> next = receiver.Tick(now);
  if (!next.ok()) return next.status();
  const bool reading = in_message_ || begin_ < end_;
  if (!reading) return *next;
  if (now < last_read_ + silence_) return std::min(*next, last_read_ + silence_);
  return Lost(absl::StrCat("the rest of a message has not come within ", absl::FormatDuration(silence_)));
}

absl::StatusOr<bool> MessageStream::Wait(absl::Time next, EagerWait& eager) {
  const absl::Time now = absl::Now();
  short events = POLLIN;
  {
    absl::MutexLock lock(&mutex_);
    if (blocked_) {
      if (now >= last_written_ + silence_) {
        return Lost(absl::StrCat("it has read nothing for ", absl::FormatDuration(silence_)));
      }
      next = std::min(next, last_written_ + silence_);
      events |= POLLOUT;
    }
  }
  std::array<pollfd, 2> files = {pollfd{socket_->descriptor(), events, 0}, pollfd{wake_, POLLIN, 0}};
  int ready = 0;
  const auto poll_for = [&](int milliseconds) { return ready = poll(files.data(), files.size(), milliseconds); };
  eager.Wait(
      [&] { return poll_for(0) != 0; },
      [&] { poll_for(static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(next - now) + 1, 0, 60'000))); });
  if (ready < 0 && errno == EINTR) return false;
  if (ready < 0) return absl::ErrnoToStatus(errno, "cannot wait for a data stream");
  const bool rung = (files[1].revents & POLLIN) != 0;
  if (rung) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake_, &count, sizeof(count));
  }
  if ((files[0].revents & (POLLOUT | POLLERR | POLLHUP)) != 0) {
    {
      absl::MutexLock lock(&mutex_);
      if (!blocked_ || writing_) return rung;
      blocked_ = false;
      writing_ = true;
    }
    Flush();
  }
  return rung;
}

void MessageStream::RunTasks() {
  if (!has_tasks_.load(std::memory_order_acquire)) return;
  std::vector<absl::AnyInvocable<void() &&>> tasks;
  {
    absl::MutexLock lock(&mutex_);
    tasks.swap(tasks_);
    has_tasks_.store(false, std::memory_order_relaxed);
  }
  for (auto& task : tasks) std::move(task)();
}

void MessageStream::RunLater(absl::AnyInvocable<void() &&> task) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    tasks_.push_back(std::move(task));
    has_tasks_.store(true, std::memory_order_release);
  }
  Wake();
}

void MessageStream::Ring() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

void MessageStream::Wake() {
  Return();
  Ring();
}

void MessageStream::End(absl::Status why) {
  {
    absl::MutexLock lock(&mutex_);
    if (end_status_.ok()) end_status_ = std::move(why);
    turn_.Signal();
  }
  Ring();
}

size_t MessageStream::unsent() const {
  absl::MutexLock lock(&mutex_);
  return queue_.size();
}

bool MessageStream::HoldsUnread() {
  absl::MutexLock lock(&reading_);
  return begin_ < end_ || socket_->HoldsUnread();
}

bool MessageStream::HasMore() {
  reading_.AssertHeld();
  return begin_ < end_ || socket_->HasMore();
}

}  // namespace ballast
