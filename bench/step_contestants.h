// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "bench/peers/thread_times.h"

namespace ballast {

// A training task: the MLP 784-512-256-10 or 784-4096-4096-10, softmax cross-entropy, on Fashion-MNIST in
// `data_folder`, by 2 workers of 1 thread, with batches of 64 each and SGD.
struct StepTask {
  // "small" or "large".
  std::string model;
  std::string data_folder;
  double seconds = 0;
};

inline constexpr int kStepWorkers = 2;
inline constexpr int kStepBatch = 64;

inline constexpr int kStepInputs = 784;

// Units of the task's two hidden layers.
std::pair<int, int> HiddenUnits(const StepTask& task);
// Weights and biases of the task's model.
uint64_t ModelFloats(const StepTask& task);

struct StepResult {
  // Both workers together, in steady state.
  double samples_per_second = 0;
  // Fraction of the workers' time spent waiting for weights, 0 to 1; negative if unknown.
  double wait_share = -1;
  // Message bytes that a worker sends and receives per step; 0 if unknown.
  double bytes_sent = 0;
  double bytes_received = 0;
  // What the threads of our processes did in steady state, and for how long; empty if the kernel does not count.
  ThreadTable threads;
  double threads_seconds = 0;
};

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
