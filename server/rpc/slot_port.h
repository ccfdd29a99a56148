// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "common/shared_memory/shared_region.h"
#include "server/rpc/data_call.h"
#include "server/rpc/data_plane.h"

namespace ballast {

// Serves the calls that one client makes in the slots of its region. Invariant: whatever the client writes there, it
// gets what a call over a connection would get, and costs no one else a slot, a thread or a place in the budget. Thread
// safety: all methods but Run may be called from any thread.
class DataPlane::SlotPort : public std::enable_shared_from_this<SlotPort> {
 public:
  // `token` is what the client presented when it asked for the region, `peer` its address.
  SlotPort(DataPlane* plane, std::shared_ptr<SharedRegion> region, std::string token, std::string peer)
      : plane_(*plane),
        region_(std::move(region)),
        token_(std::move(token)),
        peer_(std::move(peer)),
        calls_(region_->slots()),
        busy_(region_->slots()) {}

  // Takes calls, and runs what they ask for, until Stop and the end of the last call. Call it once, on a thread of its
  // own.
  void Run();
  // Takes no more calls, and cancels those under way.
  void Stop();

  absl::Span<char> Slot(uint32_t slot) { return region_->Slot(slot); }
  // Ends the call in the slot.
  void Respond(uint32_t slot, const SlotResponse& response);
  void RespondError(uint32_t slot, const absl::Status& status);
  const std::string& token() const { return token_; }
  const std::string& peer() const { return peer_; }
  // Runs the task in Run's thread. A call that has not ended must own it.
  void RunLater(absl::AnyInvocable<void() &&> task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts a call that no longer exists.
  void CallGone();

 private:
  // Takes the calls that are new, and cancels those that the client has cancelled. Returns whether any was new.
  bool TakeCalls();
  // Returns null if the call has been refused.
  std::shared_ptr<SlotCall> Begin(uint32_t slot, const SlotRequest& request);
  void CancelAll();
  // Runs the tasks that there are. Returns whether there were any.
  bool RunTasks() ABSL_LOCKS_EXCLUDED(mutex_);

  DataPlane& plane_;
  const std::shared_ptr<SharedRegion> region_;
  const std::string token_, peer_;
  // By slot; used by Run's thread only.
  std::vector<std::weak_ptr<Call>> calls_;
  // By slot: it has a call without a response. Whatever the client writes there, it gets no second one.
  std::vector<std::atomic<bool>> busy_;
  std::atomic<bool> stopped_{false};
  std::atomic<int> under_way_{0};
  absl::Mutex mutex_;
  std::vector<absl::AnyInvocable<void() &&>> tasks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
