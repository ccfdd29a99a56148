// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "worker/device/cuda/emulator/cuda_runtime.h"

namespace ballast::emulator {

// Time at which work in a stream runs.
enum class Schedule {
  // Only when something waits for it, and no more than necessary.
  kLate,
  // Immediately, unless it waits for work that has not run.
  kAtOnce,
  // Partly at each call into the runtime, on randomly chosen streams.
  kRandom,
};

// Properties of the emulated machine.
struct Settings {
  Schedule schedule = Schedule::kLate;
  uint32_t seed = 1;
  int devices = 1;
  // The devices can reach each other's memory.
  bool connected = true;
  int driver_version = 13000;
  cudaComputeMode compute_mode = cudaComputeModeDefault;
  // Another process uses the GPUs.
  bool held = false;
  int compute_major = 9;
  int compute_minor = 0;
  size_t memory_bytes = size_t{2} << 30;
  // Events also see the time that work takes on the CPU.
  bool timed = false;
};

// Resets the emulator. All objects made before must have been destroyed.
void Reset(const Settings& settings);

// Every call fails with `error`, from the `after`-th next one on (0: the next), like after losing a GPU; cudaSuccess
// ends it.
void FailEverything(cudaError_t error, int after = 0);
// The `after`-th next call (0: the next) of this function fails, once.
void FailCall(const char* call, cudaError_t error, int after);

// Called at the beginning of each capture, with the number of captures so far; null: no call.
void OnCapture(std::function<void(int)> call);

// Called from work in a stream: makes it last this long, as events see it. All other work takes no time, unless the
// settings say so.
void PassTime(float milliseconds);

struct Counts {
  // Resources not yet returned: tests expect 0 at their end.
  size_t device_bytes = 0;
  size_t host_bytes = 0;
  int streams = 0;
  int events = 0;
  int graphs = 0;
  // Pieces of pinned host memory ever allocated.
  int host_allocations = 0;
  // Waits of the host for events.
  int waits = 0;
  // Copies between devices that ran: directly, or through the host.
  int direct_copies = 0;
  int staged_copies = 0;
  // Kernels and graphs that were enqueued, and graphs among them.
  int launches = 0;
  int graph_launches = 0;
};
Counts Count();

}  // namespace ballast::emulator
