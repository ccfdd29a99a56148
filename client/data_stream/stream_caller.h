// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/data_stream/message_stream.h"
#include "common/trace/trace_context.h"
#include "common/wire/buffer_pool.h"
#include "common/wire/limits.h"
#include "common/wire/payload_scanner.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace ballast {

// Memory for a response's large payloads, so that they need not be copied. The response then refers to it.
struct PayloadPlaces {
  // Field of the response with the items.
  int field = 0;
  // Returns memory for the payload of the item with that index, whose other fields are `item`, encoded; null: the
  // response keeps the payload. Called before the call ends, in the thread that receives.
  absl::AnyInvocable<char*(size_t index, absl::string_view item, uint64_t bytes)> find;
};

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
                 Done done, PayloadPlaces places = {});

  // Ends that call with CANCELLED, unless it has ended, and asks the server to.
  void Cancel(uint32_t number);

  void End(absl::Status why) { stream_.End(std::move(why)); }

 private:
  struct Call {
    absl::Time deadline;
    bool cancelled = false;
    Done done;
    PayloadPlaces places;
  };
  // A call that has ended, and how.
  struct Ended {
    uint32_t number = 0;
    Done done;
    grpc::Status status;
  };

  // A payload at its place, and where it would be in the response.
  struct Placed {
    size_t begin = 0, end = 0;
    char* memory = nullptr;
  };

  absl::StatusOr<char*> Room(const StreamFrame& frame) override;
  absl::Span<char> Place(size_t received) override;
  void Arrived(size_t bytes) override;
  absl::Status Received(const StreamFrame& frame) override;
  absl::StatusOr<absl::Time> Tick(absl::Time now) override;

  // Returns the function of a call that thereby ends; null if there is none, or it has ended.
  Done Take(uint32_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Looks for the place of the payload that begins after that many bytes of the response.
  void FindPlace(size_t received);
  // Returns the received message as one that gRPC could have received; it keeps this.
  grpc::ByteBuffer TakeResponse();

  const uint32_t credits_;
  // A margin for what is beside the payload.
  static constexpr uint64_t kMaxResponseBytes = kMaxMessageBytes + (64 << 10);
  // Responses come one after the other.
  BufferPool buffers_{kMaxResponseBytes + BufferPool::kAlignment, 1};
  MessageStream stream_;
  // Used by the thread that receives: the response that is arriving, to which call, and since when.
  BufferPool::Buffer response_;
  uint32_t arriving_ = 0;
  absl::Time begun_;
  // Likewise: finds the payloads, if they have places; the places that were found, and how much of the response is
  // read.
  std::optional<PayloadScanner> scanner_;
  PayloadPlaces places_;
  std::vector<Placed> placed_;
  size_t scanned_ = 0;
  absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // When Tick is called next, at the latest.
  absl::Time next_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // By number.
  absl::flat_hash_map<uint32_t, Call> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
