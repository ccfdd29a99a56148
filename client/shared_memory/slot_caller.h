// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shared_memory/shared_region.h"
#include "grpcpp/support/status.h"

namespace ballast {

// Owns the calls that a client makes in the slots of its region, until their responses. Invariant: each call ends once:
// with its response, when it is cancelled, at its deadline, or with End. A call that ends in another way than the first
// may still have its slot in use by the server, but what its message lent of the client's heap is the caller's again.
// Thread safety: all methods may be called from any thread.
class SlotCaller {
 public:
  // `response`: where in the slot the message is; only if the call succeeded.
  using Done = absl::AnyInvocable<void(const grpc::Status&, const SlotResponse& response) &&>;

  explicit SlotCaller(std::shared_ptr<SharedRegion> region) : region_(std::move(region)), calls_(region_->slots()) {}

  // Receives responses and calls `done` for each, until End and the last `done`. Call it once, on a thread of its own.
  void Run();

  // Begins a call with the message in the slot, which has no other call. Returns its number, from 1; 0 after End:
  // `done` is not called. Otherwise Run calls it.
  uint64_t Begin(uint32_t slot, const SlotRequest& request, absl::Time deadline, Done done);

  // Ends that call with CANCELLED, unless it has ended, and asks the server to.
  void Cancel(uint32_t slot, uint64_t number);

  // Ends all calls with `why`, begins no more, and lets Run return.
  void End(const grpc::Status& why);

 private:
  struct Call {
    // 0: none.
    uint64_t number = 0;
    absl::Time deadline;
    bool cancelled = false;
    Done done;
  };
  // A call that has ended, and how.
  struct Ended {
    Done done;
    grpc::Status status;
    SlotResponse response;
  };

  // Takes the calls that have ended by now out of the list, and sets `next` to the time of the next deadline.
  std::vector<Ended> TakeEndedLocked(absl::Time now, absl::Time& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how the call has ended; nullopt: not yet.
  std::optional<Ended> EndOfLocked(uint32_t slot, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<SharedRegion> region_;
  absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status why_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  // By slot.
  std::vector<Call> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
