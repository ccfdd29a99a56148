// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

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
inline constexpr int kStepClasses = 10;

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

}  // namespace ballast
