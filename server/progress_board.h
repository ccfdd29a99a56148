// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/clock.h"

namespace ballast {

// Sums up what the workers report. Knows neither members nor leases.
// Thread safety: none; the coordinator guards it.
class ProgressBoard {
 public:
  explicit ProgressBoard(const Clock* clock) : clock_(clock) {}

  void Report(uint32_t worker, const v1::WorkerProgress& progress);
  void Evaluated(const v1::Evaluation& evaluation) { evaluation_ = evaluation; }

  // Fills in epoch, step, examples, losses, rates, staleness, evaluation and wait share.
  void Fill(v1::JobProgress& progress) const;

  uint64_t StepOf(uint32_t worker) const;

 private:
  struct Entry {
    absl::Time at;
    v1::WorkerProgress progress;
  };
  struct Worker {
    uint64_t step = 0;
    std::deque<Entry> recent;
  };

  const Clock* const clock_;
  std::map<uint32_t, Worker> workers_;
  uint64_t examples_ = 0;
  uint64_t max_staleness_ = 0;
  uint32_t epoch_ = 0;
  uint64_t epoch_examples_ = 0;
  double epoch_loss_sum_ = 0;
  std::optional<v1::Evaluation> evaluation_;
};

}  // namespace ballast
