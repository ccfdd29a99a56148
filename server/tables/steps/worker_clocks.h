// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace ballast {

// Owns the workers' clocks of a table with bounded staleness: the number of steps that each has ended. A pull at step t
// waits while the slowest active (not paused) worker has a clock below t - steps_ahead. Invariant: clocks change as
// those of a slice with the same steps, pauses and returns (server/policies/bounded_policy.cc says why), and the
// slowest clock never goes back. Deliberately does not know which messages make up a step. Thread safety: none; guarded
// by its table.
class WorkerClocks {
 public:
  // All workers begin at `first_step`, and are active.
  WorkerClocks(uint32_t workers, uint64_t steps_ahead, uint64_t first_step)
      : steps_ahead_(steps_ahead), workers_(workers, {false, first_step, first_step}), slowest_(first_step) {}

  // FAILED_PRECONDITION for a step that no worker can be at.
  absl::Status CheckStep(uint64_t step) const;

  // The worker has ended the step before `finished`, for which CheckStep returned OK. Ends its pause. Returns the
  // number of steps by which its own count rose.
  uint64_t Finish(uint32_t worker, uint64_t finished);

  // Like Finish, for what a worker reports: does nothing if the clock is not behind, or if no worker can be at that
  // step.
  uint64_t CatchUp(uint32_t worker, uint64_t finished);

  // No pull waits for the worker until it ends a step again.
  void Pause(uint32_t worker);

  // True if a pull at `step` need not wait.
  bool MayPull(uint64_t step) const;

  // Ranks that a pull at `step` waits for.
  std::vector<uint32_t> Missing(uint64_t step) const;

  struct State {
    struct Worker {
      bool paused = false;
      // The worker's own count since it last returned.
      uint64_t finished = 0;
      // At least `finished`: a worker that returns from a pause far behind continues at the slowest worker's clock.
      uint64_t clock = 0;
    };
    // By rank.
    std::vector<Worker> workers;
    // Clock of the slowest active worker.
    uint64_t slowest = 0;
  };
  // All workers active, with that many steps.
  static State Together(uint32_t workers, uint64_t steps);
  State Save() const { return {workers_, slowest_}; }
  // INVALID_ARGUMENT unless the state is of that many workers.
  absl::Status Restore(State state);

 private:
  // Without active workers the clock does not change.
  void RaiseSlowest();
  // The clock that the slowest worker must reach before a pull at `step` may proceed.
  uint64_t WantedClock(uint64_t step) const { return step > steps_ahead_ ? step - steps_ahead_ : 0; }

  const uint64_t steps_ahead_;
  std::vector<State::Worker> workers_;
  uint64_t slowest_ = 0;
};

}  // namespace ballast
