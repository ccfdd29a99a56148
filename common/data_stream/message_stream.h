// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
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

// Takes the messages that arrive on a data stream. All methods are called by the thread in MessageStream::Run.
class MessageReceiver {
 public:
  virtual ~MessageReceiver() = default;

  // Returns memory for the frame's message, which stays valid until Received; null: the message is skipped. An error
  // ends the stream.
  virtual absl::StatusOr<char*> Room(const StreamFrame& frame) = 0;
  // The first `bytes` of the message are in the memory that Room returned. Called for each part that arrives.
  virtual void Arrived(size_t /*bytes*/) {}
  // The message is complete, or skipped. An error ends the stream.
  virtual absl::Status Received(const StreamFrame& frame) = 0;
  // Called after each wait; returns the time of the next call at the latest. An error ends the stream.
  virtual absl::StatusOr<absl::Time> Tick(absl::Time now) = 0;
};

// Sends and receives messages on one connection, without knowing what they are about. Messages are sent by the thread
// that calls Send, as far as the connection takes them at once, and otherwise by the thread in Run. Invariant: all
// memory of a message is released once it is sent, or the stream has ended. Thread safety: all methods may be called
// from any thread.
class MessageStream {
 public:
  // A peer that neither reads nor sends the rest of a message for `silence` is lost.
  MessageStream(std::unique_ptr<StreamSocket> socket, absl::Duration silence);
  ~MessageStream();
  MessageStream(const MessageStream&) = delete;

  // Receives messages, and sends those that the connection did not take at once, until the connection ends, the peer
  // breaks the rules, or End. Returns why: never OK. Call it once.
  absl::Status Run(MessageReceiver& receiver);

  // Sends a frame with its message, whose size and lead this sets. Calls `sent` once, from any thread, after the
  // connection has taken it, or at once if the stream has ended.
  void Send(StreamFrame frame, const grpc::ByteBuffer& message, absl::AnyInvocable<void() &&> sent = nullptr);

  // Soon calls `task` in the thread in Run; never if that has ended.
  void RunLater(absl::AnyInvocable<void() &&> task);
  // Makes Run call Tick soon.
  void Wake();
  // Makes Run return `why` soon.
  void End(absl::Status why);

  // Number of messages that the connection has not taken.
  size_t unsent() const;
  // Returns whether more has arrived than Run has read. For the thread in Run.
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

  // Reads until a message is complete; returns false if that would block.
  absl::StatusOr<bool> ReadMessage(MessageReceiver& receiver);
  absl::StatusOr<bool> ReadHeader(MessageReceiver& receiver);
  // Waits for the connection, for a wake-up, or until `next`.
  absl::Status Wait(absl::Time next);
  // Waits like poll(2). Returns the number of files with events.
  int Poll(absl::Span<pollfd> files, absl::Duration timeout);
  void RunTasks() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<StreamSocket> socket_;
  const absl::Duration silence_;
  // Wakes the thread in Run.
  const int wake_;

  // The thread in Run alone: what has been read ahead, in buffer_[begin_, end_), and the message that is being read.
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool in_message_ = false;
  StreamFrame frame_;
  char* to_ = nullptr;
  size_t received_ = 0;
  absl::Time last_read_;
  // Small messages that answer each other come soon, and so does the rest of a large one.
  EagerWait wait_;

  mutable absl::Mutex mutex_;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mutex_);
  // A thread is in Flush.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // The connection takes no more at present; the thread in Run waits until it does.
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_written_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::AnyInvocable<void() &&>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_tasks_{false};
  // Not OK once the stream has ended, or is to.
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ballast
