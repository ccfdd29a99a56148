// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/step_task.h"

namespace ballast {

// Settings of our own processes.
struct BallastSetting {
  // "sync", "async" or "alone": sums the gradients of so many batches that the rate is that of the computation.
  std::string mode;
  // "fp32", "fp16", "bf16" or "int8".
  std::string codec;
  // True: workers on one machine exchange messages through shared memory. False: through TCP, as between machines.
  bool shared_memory = true;
  // Uses TLS, certificates on both sides and tokens.
  bool tls = false;
  // True: HTTP pages that are scraped, and a live page. False: no flight recorder either. Without a value, as programs
  // are by default.
  std::optional<bool> observed;
};

// Trains with a real server and real workers. The result comes from the run's metrics.jsonl, without its first part.
absl::StatusOr<StepResult> TrainWithBallast(const StepTask& task, const BallastSetting& setting);

// Trains with PyTorch: `method` is "ddp" (DistributedDataParallel on Gloo), "rpc" (a parameter server, through shared
// memory) or "rpc-tcp" (the same through TCP). NOT_FOUND if there is no PyTorch.
absl::StatusOr<StepResult> TrainWithTorch(const StepTask& task, const std::string& method);

}  // namespace ballast
