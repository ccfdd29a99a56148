// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/concurrency/eager_wait.h"
#include "common/data_stream/stream_frame.h"
#include "common/data_stream/stream_socket.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace ballast {

// Takes the messages that arrive on a data stream. All methods are called by the thread that receives, in
// MessageStream::Run or Help; there is one at a time.
class MessageReceiver {
 public:
  virtual ~MessageReceiver() = default;

  // Returns memory for the frame's message, which stays valid until Received; null: the message is skipped. An error
  // ends the stream.
  virtual absl::StatusOr<char*> Room(const StreamFrame& frame) = 0;
  // Returns other memory for the next bytes of the message, after `received` of them, and for no more than it has left;
  // empty: they go to Room's. Called for each part that arrives.
  virtual absl::Span<char> Place(size_t /*received*/) { return {}; }
  // The first `bytes` of the message are where they belong. Called for each part that arrives.
  virtual void Arrived(size_t /*bytes*/) {}
  // The message is complete, or skipped. An error ends the stream.
  virtual absl::Status Received(const StreamFrame& frame) = 0;
  // Called after each wait; returns the time of the next call at the latest. An error ends the stream.
  virtual absl::StatusOr<absl::Time> Tick(absl::Time now) = 0;
};

// Sends and receives messages on one connection, without knowing what they are about. Messages are sent by the thread
// that calls Send, as far as the connection takes them at once, and otherwise by the thread that receives. Invariant:
// all memory of a message is released once it is sent, or the stream has ended. Thread safety: all methods may be
// called from any thread.
class MessageStream {
 public:
  // A peer that neither reads nor sends the rest of a message for `silence` is lost.
  MessageStream(std::unique_ptr<StreamSocket> socket, absl::Duration silence);
  ~MessageStream();
  MessageStream(const MessageStream&) = delete;

  // Receives messages, and sends those that the connection did not take at once, until the connection ends, the peer
  // breaks the rules, or End. Returns why: never OK. Call it once; after it nobody calls `receiver`. Stays away while
  // another thread is in Help, and for a moment after, because that thread is likely to come back.
  absl::Status Run(MessageReceiver& receiver) ABSL_LOCKS_EXCLUDED(reading_, mutex_);

  // Receives in the calling thread instead, until `ready`, which what arrives may make true, or `timeout`, or the end
  // of the stream; the thread in Run need not wake. Calls `ready` after every message, and whenever Notify is called.
  // Returns the time that it spent on messages; nullopt, at once, if another thread helps already, or the stream has
  // ended.
  std::optional<absl::Duration> Help(MessageReceiver& receiver, absl::FunctionRef<bool()> ready, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  // Has a thread in Help call its `ready`. Call it whenever another thread may have made that true.
  void Notify() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the thread in Run receive at once, unless another thread is in Help.
  void Return() ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends a frame with its message, whose size and lead this sets. Calls `sent` once, from any thread, after the
  // connection has taken it, or at once if the stream has ended.
  void Send(StreamFrame frame, const grpc::ByteBuffer& message, absl::AnyInvocable<void() &&> sent = nullptr);

  // Soon calls `task` in the thread that receives; never if the stream has ended.
  void RunLater(absl::AnyInvocable<void() &&> task);
  // Makes the thread that receives call Tick soon.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes Run return `why` soon.
  void End(absl::Status why);

  // Number of messages that the connection has not taken.
  size_t unsent() const;
  // Returns whether more has arrived than was read. For the thread that receives.
  bool HasMore();

 private:
  // A message on its way.
  struct Outgoing {
    std::array<char, kStreamFrameBytes> header;
    std::vector<grpc::Slice> slices;
    absl::AnyInvocable<void() &&> sent;
    // The piece to send next, of which the header is the first, and the bytes of it that have been sent.
    size_t next = 0, next_sent = 0;

    size_t pieces() const { return 1 + slices.size(); }
    absl::string_view Piece(size_t index) const {
      if (index == 0) return {header.data(), header.size()};
      const grpc::Slice& slice = slices[index - 1];
      return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
    }
  };

  // Releases a message's memory, then says that it is sent.
  static void Release(Outgoing& message);
  // Sends what is queued as far as possible. The caller has set writing_.
  void Flush() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the bytes to send next.
  std::vector<iovec> PiecesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes `bytes` from the front of the queue; returns the messages that are complete.
  std::vector<Outgoing> TakeSentLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Waits for the turn of the thread in Run. Returns why the stream has ended, or OK.
  absl::Status AwaitTurn() ABSL_LOCKS_EXCLUDED(mutex_);
  void ReturnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HelpsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return helper_ != std::thread::id(); }
  // Wakes who waits for the connection.
  void Ring() const;

  // Receives a message, if it is complete; otherwise returns the time until which to wait for more at the latest.
  absl::StatusOr<std::optional<absl::Time>> Receive(MessageReceiver& receiver) ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  // Reads until a message is complete; returns false if that would block.
  absl::StatusOr<bool> ReadMessage(MessageReceiver& receiver) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);
  absl::StatusOr<bool> ReadHeader(MessageReceiver& receiver) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);
  // Reads some of the message's next bytes; returns false if that would block.
  absl::StatusOr<bool> ReadPart(MessageReceiver& receiver) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);
  // Returns whether bytes were taken from the connection that nobody has received.
  bool HoldsUnread() ABSL_LOCKS_EXCLUDED(reading_);
  // Waits for the connection, for Ring, or until `next`; returns whether it was Ring. `eager`: of the calling thread.
  absl::StatusOr<bool> Wait(absl::Time next, EagerWait& eager) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunTasks() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<StreamSocket> socket_;
  const absl::Duration silence_;
  // Wakes the thread that receives.
  const int wake_;
  // Small messages that answer each other come soon, and so does the rest of a large one. Of the thread in Run, and of
  // the one in Help.
  EagerWait wait_, helpers_wait_;

  // Held by the thread that receives, but not while it waits.
  absl::Mutex reading_;
  // What has been read ahead, in buffer_[begin_, end_), and the message that is being read.
  std::vector<char> buffer_ ABSL_GUARDED_BY(reading_);
  size_t begin_ ABSL_GUARDED_BY(reading_) = 0, end_ ABSL_GUARDED_BY(reading_) = 0;
  bool in_message_ ABSL_GUARDED_BY(reading_) = false;
  StreamFrame frame_ ABSL_GUARDED_BY(reading_);
  char* to_ ABSL_GUARDED_BY(reading_) = nullptr;
  size_t received_ ABSL_GUARDED_BY(reading_) = 0;
  absl::Time last_read_ ABSL_GUARDED_BY(reading_);
  // Not OK after Run.
  absl::Status read_end_ ABSL_GUARDED_BY(reading_);

  mutable absl::Mutex mutex_;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mutex_);
  // A thread is in Flush.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // The connection takes no more at present; the thread that receives waits until it does.
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_written_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::AnyInvocable<void() &&>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_tasks_{false};
  // Not OK once the stream has ended, or is to.
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // The thread in Help, or no thread's, and the last one.
  std::thread::id helper_ ABSL_GUARDED_BY(mutex_), last_helper_ ABSL_GUARDED_BY(mutex_);
  // When Help returned last.
  absl::Time helped_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // The thread in Run waits for its turn, and should take it though another has just helped.
  bool away_ ABSL_GUARDED_BY(mutex_) = false, returns_ ABSL_GUARDED_BY(mutex_) = false;
  // Signaled when `returns_` is set, or the stream ends.
  absl::CondVar turn_;
};

}  // namespace ballast
