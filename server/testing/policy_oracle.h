// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/policies/slice_policy.h"

namespace ballast {

// Checks from outside the promises of one slice under a policy: it is told every event at the slice, and records the
// first broken promise. Gradients have one element; the weights start at 0 and an update subtracts the gradient,
// rounded to a whole number.
class PolicyOracle {
 public:
  // Counts of what happened, in all simulations that share it.
  struct Tally {
    uint64_t applied = 0, dropped = 0, closed_by_pause = 0, closed_below_quorum = 0, lifted = 0;
    uint64_t waits = 0, losses = 0, returns = 0;
  };

  // `tally` must outlive this.
  PolicyOracle(const v1::ConsistencyPolicy& policy, uint32_t workers, Tally* tally);

  // State of the slice after an event.
  struct Seen {
    uint64_t version = 0;
    float value = 0;
    // Learning rate of the last update.
    float rate = 1;
  };

  struct Push {
    uint32_t worker = 0;
    uint64_t step = 0;
    uint32_t examples = 0;
    uint64_t from_version = 0;
    float gradient = 0;
  };

  void Offered(const Push& push, PushDisposition disposition, const Seen& after);
  void Paused(uint32_t worker, const Seen& after);
  void Answered(const PullQuery& pull, const Seen& now);
  // The pull must wait, for the workers in `missing`.
  void Waits(const PullQuery& pull, const std::vector<uint32_t>& missing);
  // The schedule has ended.
  void Ended();

  // True if a pull may wait forever, because no worker will ever make the update that it needs.
  bool MayWaitForEver(const PullQuery& pull) const;

  // Empty while all promises are kept.
  const std::string& fault() const { return fault_; }

 private:
  struct Worker {
    bool paused = false, ever_paused = false;
    // Steps finished by the worker's own count since it last joined, and steps added to it since it returned.
    uint64_t finished = 0, lift = 0;
    bool pulled = false;
    float handed_out = 0;
  };

  bool is_sync() const { return quorum_ > 0; }
  template <typename... Parts>
  void Expect(bool kept, const Parts&... promise) {
    if (!kept && fault_.empty()) fault_ = absl::StrCat(promise...);
  }
  void OfferedToSync(const Push& push, PushDisposition disposition, const Seen& after);
  void OfferedOnArrival(const Push& push, PushDisposition disposition);
  bool HasGathered(uint32_t worker) const;
  bool MayClose() const;
  void Close();
  void MoveClock(const Push& push);
  uint64_t Slowest() const;
  std::vector<uint32_t> Waited(const PullQuery& pull) const;
  void Compare(const Seen& after);

  const v1::ConsistencyPolicy policy_;
  // Quorum of sync and local_sgd; otherwise 0.
  const uint32_t quorum_;
  std::vector<Worker> workers_;
  uint64_t version_ = 0;
  float value_ = 0;
  float rate_ = 1;
  // The lowest clock of the active workers, or the last such clock if there are none.
  uint64_t slowest_ = 0;
  // Contributions to the step being gathered.
  std::vector<Push> gathered_;
  std::string fault_;
  Tally& tally_;
};

}  // namespace ballast
