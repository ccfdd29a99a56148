// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/data_stream/message_stream.h"
#include "common/trace/trace_context.h"
#include "common/wire/buffer_pool.h"
#include "common/wire/limits.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace ballast {

// Owns the calls that a client makes on its data stream, until their responses. Invariant: each call ends once: with
// its response, when it is cancelled, at its deadline, or with the stream. Shared by its user and the responses, whose
// memory is its own. Thread safety: all methods may be called from any thread.
class StreamCaller : public MessageReceiver, public std::enable_shared_from_this<StreamCaller> {
 public:
  // `response` is empty unless the call succeeded. `begun`: when the response began to arrive.
  using Done = absl::AnyInvocable<void(const grpc::Status&, grpc::ByteBuffer response, absl::Time begun) &&>;

  // `credits`: how many calls the server takes at a time.
  StreamCaller(std::unique_ptr<StreamSocket> socket, absl::Duration silence, uint32_t credits)
      : credits_(credits), stream_(std::move(socket), silence) {}

  // Sends requests and receives responses, and calls `done` for each, until the connection ends, or End; then ends all
  // calls with UNAVAILABLE and begins no more. Call it once, on a thread of its own.
  void Run();

  // Receives responses in the calling thread instead; see MessageStream::Help.
  std::optional<absl::Duration> Help(absl::FunctionRef<bool()> ready, absl::Duration timeout);
  // Has a thread in Help call its `ready`. Call it whenever another thread may have made that true.
  void Notify() { stream_.Notify(); }

  // Begins a call of that method, an index in kDirectMethods. Returns its number, from 1; 0 if there is no credit or
  // the stream has ended: `done` is not called. Otherwise the thread that receives the response calls it.
  uint32_t Begin(uint32_t method, const grpc::ByteBuffer& request, const TraceContext& span, absl::Time deadline,
                 Done done);

  // Ends that call with CANCELLED, unless it has ended, and asks the server to.
  void Cancel(uint32_t number);

  void End(absl::Status why) { stream_.End(std::move(why)); }

 private:
  struct Call {
    absl::Time deadline;
    bool cancelled = false;
    Done done;
  };
  // A call that has ended, and how.
  struct Ended {
    uint32_t number = 0;
    Done done;
    grpc::Status status;
  };

  absl::StatusOr<char*> Room(const StreamFrame& frame) override;
  absl::Status Received(const StreamFrame& frame) override;
  absl::StatusOr<absl::Time> Tick(absl::Time now) override;

  // Returns the function of a call that thereby ends; null if there is none, or it has ended.
  Done Take(uint32_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the received message as one that gRPC could have received; it keeps this.
  grpc::ByteBuffer TakeResponse();

  const uint32_t credits_;
  // A margin for what is beside the payload.
  static constexpr uint64_t kMaxResponseBytes = kMaxMessageBytes + (64 << 10);
  // Responses come one after the other.
  BufferPool buffers_{kMaxResponseBytes + BufferPool::kAlignment, 1};
  MessageStream stream_;
  // Used by the thread that receives: the response that is arriving, and since when.
  BufferPool::Buffer response_;
  absl::Time begun_;
  absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // When Tick is called next, at the latest.
  absl::Time next_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // By number.
  absl::flat_hash_map<uint32_t, Call> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
