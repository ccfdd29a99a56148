// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ballast {

// What is trained: 784-512-256-10 or 784-4096-4096-10, softmax cross-entropy, on Fashion-MNIST in `data_folder`, by
// 2 workers of 1 thread, with batches of 64 each and SGD.
struct StepTask {
  // "small" or "large".
  std::string model;
  std::string data_folder;
  double seconds = 0;
};

inline constexpr int kStepWorkers = 2;
inline constexpr int kStepBatch = 64;

struct StepResult {
  // Of both workers together, in steady state.
  double samples_per_second = 0;
  // Part of the workers' time spent waiting for weights, 0 to 1; negative where it is not known.
  double wait_share = -1;
  // Of messages that a worker sends and receives in a step; 0 where it is not known.
  double bytes_sent = 0;
  double bytes_received = 0;
};

// How our own processes train.
struct BallastSetting {
  // "sync" or "async".
  std::string mode;
  // "fp32", "fp16", "bf16" or "int8".
  std::string codec;
  // As workers on one machine exchange messages, else through TCP as between machines.
  bool shared_memory = true;
  // With TLS, certificates on both sides and tokens.
  bool tls = false;
};

// Trains with a real server and real workers. The figure comes from the run's own metrics.jsonl, its first part left
// out.
absl::StatusOr<StepResult> TrainWithBallast(const StepTask& task, const BallastSetting& setting);

// Trains with PyTorch: `method` is "ddp" (DistributedDataParallel on Gloo), "rpc" (a parameter server, through shared
// memory) or "rpc-tcp" (the same through TCP). NOT_FOUND where there is no PyTorch.
absl::StatusOr<StepResult> TrainWithTorch(const StepTask& task, const std::string& method);

}  // namespace ballast
