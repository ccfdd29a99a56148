// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/concurrency/executor.h"
#include "grpcpp/generic/async_generic_service.h"
#include "server/memory/buffer_pool.h"
#include "server/memory/byte_budget.h"
#include "server/rpc/port/access_guard.h"
#include "server/rpc/region_registry.h"
#include "server/rpc/serving_gate.h"
#include "server/rpc/unary_reply.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// The calls that carry payloads: Push, Pull, PushPull and SetValues of ballast.v1.ParameterService, as raw bytes.
// Gradients are used where they were received, values are sent from where the shard holds them. A message is read only
// when the caller may send it and the budget of bytes in flight has room for the largest one, else the call is refused
// unread. Thread safety: all methods may be called from any thread.
class DataPlane : public grpc::CallbackGenericService {
 public:
  struct Traffic {
    // Those of pulls that wait among them.
    uint64_t bytes_in_flight = 0, bytes_in_flight_limit = 0;
    // Calls refused for the budget.
    uint64_t refused = 0;
    // Of the payloads of pushes, and of the answers to pulls.
    uint64_t push_bytes = 0, pull_bytes = 0;
    // Clients with which memory is shared, and calls whose message lay there.
    uint64_t shared_regions = 0, shared_calls = 0;
  };

  // `executor` does all that depends on what is in a message; the threads of gRPC, which are few and answer heartbeats,
  // only hand messages over. All must outlive the server that this is registered with.
  // What may wait is the shard's part of `max_bytes_in_flight`.
  DataPlane(uint32_t rank, ParameterShard* shard, const AccessGuard* access, const ServingGate* serving,
            Executor* executor, uint64_t max_bytes_in_flight)
      : rank_(rank),
        shard_(shard),
        access_(access),
        serving_(serving),
        executor_(executor),
        budget_(max_bytes_in_flight - WaitBytes(max_bytes_in_flight)) {}

  // The part of the bytes in flight that pulls may take while they wait for other workers. Of the rest, callers who may
  // only read can hold as large a part, however many they are and however slowly they send and receive.
  static uint64_t WaitBytes(uint64_t max_bytes_in_flight) { return max_bytes_in_flight / 4; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

  // Where messages may lie, instead of in the calls.
  RegionRegistry& regions() { return regions_; }

  // For what another call holds beside them; as ByteBudget::Reserve.
  absl::StatusOr<ByteBudget::Reservation> Reserve(uint64_t bytes) { return budget_.Reserve(bytes); }

  Traffic traffic() const;

 private:
  class Call;

  // Buffers of a whole message that are kept for the next one.
  static constexpr size_t kBuffersKept = 4;

  const uint32_t rank_;
  ParameterShard* const shard_;
  const AccessGuard* const access_;
  const ServingGate* const serving_;
  Executor* const executor_;
  ByteBudget budget_;
  ByteBudget reader_budget_{budget_.limit() / 4, &budget_};
  RegionRegistry regions_{&budget_};
  // For requests out of shared memory.
  BufferPool buffers_{SharedRegion::kSlotBytes, kBuffersKept};
  UnknownMethods unknown_methods_;
  std::atomic<uint64_t> push_bytes_{0}, pull_bytes_{0}, shared_calls_{0};
};

}  // namespace ballast
