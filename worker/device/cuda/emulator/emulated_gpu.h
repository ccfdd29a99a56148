// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "worker/device/cuda/emulator/cuda_runtime.h"

namespace ballast::emulator {

// When work that was put into a stream runs.
enum class Schedule {
  // When something waits for it, and no more than it needs.
  kLate,
  // At once, unless it waits for what has not run.
  kAtOnce,
  // With each call into the runtime, some of it: a random choice of streams.
  kRandom,
};

// What the emulated runtime pretends to be.
struct Settings {
  Schedule schedule = Schedule::kLate;
  uint32_t seed = 1;
  int devices = 1;
  int driver_version = 13000;
  int compute_major = 9;
  int compute_minor = 0;
  size_t memory_bytes = size_t{2} << 30;
};

// Starts anew. Whatever was made before must be gone.
void Reset(const Settings& settings);

// From the `after`-th next call on (0: the next) each fails with this, as after a GPU was lost; cudaSuccess ends it.
void FailEverything(cudaError_t error, int after = 0);
// The `after`-th next call (0: the next) of this name fails, once.
void FailCall(const char* call, cudaError_t error, int after);

// Called when a capture has begun, with the number of captures so far; null: nothing is.
void OnCapture(std::function<void(int)> call);

// In work of a stream: it takes this long, as events see it. All else takes no time.
void PassTime(float milliseconds);

// Kernels, and graphs of them, that were put into streams.
int Launches();
// Graphs among them.
int GraphLaunches();

// What was made and not yet given back: tests expect 0 at their end.
size_t DeviceBytes();
size_t HostBytes();
int Streams();
int Events();
int Graphs();
// Pieces of pinned host memory that were ever allocated.
int HostAllocations();

}  // namespace ballast::emulator
