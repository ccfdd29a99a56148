// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/concurrency/background_threads.h"
#include "common/concurrency/executor.h"
#include "common/wire/buffer_pool.h"
#include "grpcpp/generic/async_generic_service.h"
#include "server/memory/byte_budget.h"
#include "server/memory/payload_counts.h"
#include "server/rpc/call_phases.h"
#include "server/rpc/call_tracing.h"
#include "server/rpc/port/access_guard.h"
#include "server/rpc/region_registry.h"
#include "server/rpc/serving_gate.h"
#include "server/rpc/stream_registry.h"
#include "server/rpc/unary_reply.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Serves the calls that carry payloads: Push, Pull, PushPull and SetValues of ballast.v1.ParameterService, as raw
// bytes. Gradients are used in the receive buffers; values are sent from the shard's memory. A call's message is read
// only if the caller has access and the budget of bytes in flight has room for the largest message; otherwise the
// call is refused unread. Thread safety: all methods may be called from any thread.
class DataPlane : public grpc::CallbackGenericService {
 public:
  struct Traffic {
    // Includes waiting pulls.
    uint64_t bytes_in_flight = 0, bytes_in_flight_limit = 0;
    // Calls refused because the budget was used up.
    uint64_t refused = 0;
    // Bytes of push payloads, and of responses to pulls.
    uint64_t push_bytes = 0, pull_bytes = 0;
    // Bytes of buffers that are kept for reuse and free now.
    uint64_t free_buffer_bytes = 0;
    // Clients with which memory is shared, and calls whose message was in it.
    uint64_t shared_regions = 0, shared_calls = 0;
    // Open data streams, and calls on them.
    uint64_t data_streams = 0, stream_calls = 0;
  };

  // `executor` runs all work that depends on a message's contents, except for small pushes: the port's few gRPC threads
  // pass other messages on. All arguments must outlive the server with which this is registered. The shard has its own
  // part of `max_bytes_in_flight` for waiting pulls. Null `tracing`: no calls are traced.
  DataPlane(uint32_t rank, ParameterShard* shard, const AccessGuard* access, const ServingGate* serving,
            Executor* executor, uint64_t max_bytes_in_flight, CallTracing* tracing = nullptr)
      : rank_(rank),
        shard_(shard),
        access_(access),
        serving_(serving),
        executor_(executor),
        tracing_(tracing),
        budget_(max_bytes_in_flight - WaitBytes(max_bytes_in_flight)) {}
  ~DataPlane();

  // The part of the bytes in flight that pulls may use while they wait for other workers. Callers with the reader
  // role share a quarter of the rest, however many they are and however slowly they send and receive.
  static uint64_t WaitBytes(uint64_t max_bytes_in_flight) { return max_bytes_in_flight / 4; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

  // Shared memory in which messages may be, instead of in the calls.
  RegionRegistry& regions() { return regions_; }

  // Serves the calls that a client makes in the region's slots, on a thread of its own, until the result is called,
  // which does not wait. `heap` is the client's, or null; `token` is what the client presented, `peer` its address.
  std::function<void()> ServeSlots(std::shared_ptr<SharedRegion> region, std::unique_ptr<SharedHeapReader> heap,
                                   std::string token, std::string peer);

  // Data streams: connections that clients open for the calls that this serves. OfferStream says how a client that
  // presented `token` may open one; ServeStream serves it on a thread of its own, if the connection begins with a
  // ticket, which has arrived; it owns the socket.
  absl::StatusOr<v1::OpenDataStreamResponse> OfferStream(std::string token, std::string peer);
  void ServeStream(int socket);
  StreamRegistry& streams() { return streams_; }

  // Reserves memory for another call, as ByteBudget::Reserve.
  absl::StatusOr<ByteBudget::Reservation> Reserve(uint64_t bytes) { return budget_.Reserve(bytes); }

  Traffic traffic() const;

  // Fills in the time by phase of each method that was called, and the payloads by codec.
  void Describe(v1::GetStatusResponse& status) const;

 private:
  class Call;
  class GrpcCall;
  class SlotCall;
  class SlotPort;
  class StreamCall;
  class StreamPort;

  // Memory of messages that is kept for reuse: that of a few large ones.
  static constexpr size_t kMessageBytesKept = 4 * SharedRegion::kSlotBytes;

  const uint32_t rank_;
  ParameterShard* const shard_;
  const AccessGuard* const access_;
  const ServingGate* const serving_;
  Executor* const executor_;
  CallTracing* const tracing_;
  ByteBudget budget_;
  ByteBudget reader_budget_{budget_.limit() / 4, &budget_};
  // Shared memory takes up to three quarters for as long as it lasts, and data streams this, so that calls have room.
  ByteBudget stream_budget_{budget_.limit() / 8, &budget_};
  RegionRegistry regions_{&budget_};
  StreamRegistry streams_;
  // Copies of requests from shared memory, and requests on data streams.
  BufferPool buffers_{SharedRegion::kSlotBytes, kMessageBytesKept};
  UnknownMethods unknown_methods_;
  // In the order of Call::Methods.
  std::array<CallPhases, 5> phases_ = {CallPhases("push"), CallPhases("pull"), CallPhases("push_pull"),
                                       CallPhases("push_rows"), CallPhases("pull_rows")};
  PayloadCounts pushed_, pulled_;
  std::atomic<uint64_t> pull_bytes_{0}, shared_calls_{0}, stream_calls_{0};
  // Declared last: its destructor waits for threads that use the other fields.
  BackgroundThreads slot_threads_, stream_threads_;
};

}  // namespace ballast
