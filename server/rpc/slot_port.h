// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/shared_memory/shared_heap.h"
#include "common/shared_memory/shared_message.h"
#include "common/shared_memory/shared_region.h"
#include "common/wire/buffer_pool.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/data_call.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/stay_forecast.h"

namespace ballast {

// Serves the calls that one client makes in the slots of its region. Invariant: whatever the client writes there, it
// gets what a call over a connection would get, and costs no one else a slot, a thread or a place in the budget. Thread
// safety: all methods but Run may be called from any thread.
class DataPlane::SlotPort : public std::enable_shared_from_this<SlotPort> {
 public:
  // `heap`: the client's; null: it has none. `token` is what the client presented when it asked for the region, `peer`
  // its address.
  SlotPort(DataPlane* plane, std::shared_ptr<SharedRegion> region, std::unique_ptr<SharedHeapReader> heap,
           std::string token, std::string peer)
      : plane_(*plane),
        region_(std::move(region)),
        heap_(std::move(heap)),
        token_(std::move(token)),
        peer_(std::move(peer)),
        calls_(region_->slots()),
        busy_(region_->slots()),
        lent_(region_->slots()) {}

  // Takes calls, and runs what they ask for, until Stop and the end of the last call. Call it once, on a thread of its
  // own.
  void Run();
  // Takes no more calls, and cancels those under way.
  void Stop();

  absl::Span<char> Slot(uint32_t slot) { return region_->Slot(slot); }
  // Copies the request of the call in the slot. INVALID_ARGUMENT if it is not where the client said; CANCELLED if the
  // client has taken back what it lent.
  absl::StatusOr<std::vector<BufferPool::Buffer>> Read(uint32_t slot, const SlotRequest& request);
  // Ends the call in the slot.
  void Respond(uint32_t slot, const SlotResponse& response);
  // Same, with a response in pieces, which lends memory that `message` keeps, until the client has read it.
  void RespondInPieces(uint32_t slot, MessageSpot list, grpc::ByteBuffer message) ABSL_LOCKS_EXCLUDED(mutex_);
  void RespondError(uint32_t slot, const absl::Status& status);
  const std::string& token() const { return token_; }
  const std::string& peer() const { return peer_; }
  // Runs the task in Run's thread. A call that has not ended must own it.
  void RunLater(absl::AnyInvocable<void() &&> task) ABSL_LOCKS_EXCLUDED(mutex_);
  void Pushed(const PushOutcome& outcome) { stay_.Took(outcome); }
  // Counts a call that no longer exists.
  void CallGone();

 private:
  struct Begun {
    // Null: there is none.
    std::shared_ptr<SlotCall> call;
    // Others are left.
    bool more = false;
  };

  // Takes the calls that are new, and cancels those that the client has cancelled. Returns whether any was new.
  bool TakeCalls();
  // Returns a call that nobody processes yet.
  Begun NextBegun() ABSL_LOCKS_EXCLUDED(mutex_);
  // Processes such calls until there is none.
  void ProcessBegun();
  // Returns null if the call has been refused.
  std::shared_ptr<SlotCall> Begin(uint32_t slot, const SlotRequest& request);
  void CancelAll();
  // Frees what responses lent and clients have read; with `all`, also the rest.
  void FreeLent(bool all) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs the tasks that there are. Returns whether there were any.
  bool RunTasks() ABSL_LOCKS_EXCLUDED(mutex_);

  DataPlane& plane_;
  const std::shared_ptr<SharedRegion> region_;
  const std::unique_ptr<SharedHeapReader> heap_;
  const std::string token_, peer_;
  // By slot; used by Run's thread only.
  std::vector<std::weak_ptr<Call>> calls_;
  // By slot: it has a call without a response. Whatever the client writes there, it gets no second one.
  std::vector<std::atomic<bool>> busy_;
  std::atomic<bool> stopped_{false};
  StayForecast stay_;
  std::atomic<int> under_way_{0};
  absl::Mutex mutex_;
  std::vector<absl::AnyInvocable<void() &&>> tasks_ ABSL_GUARDED_BY(mutex_);
  // Calls that nobody processes yet.
  std::vector<std::shared_ptr<SlotCall>> begun_ ABSL_GUARDED_BY(mutex_);
  // By slot: the last response, if it lends memory. No budget has it: a message lent leaves as much of its slot unused.
  std::vector<std::optional<grpc::ByteBuffer>> lent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
