// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ballast {

struct GpuFacts {
  std::string name;
  // Such as "9.0".
  std::string compute_capability;
  uint64_t memory_bytes = 0;
  // The reason why workers cannot compute on this GPU; empty: they can.
  std::string unfit;
};

// An NVIDIA library, searched for in the same places as the worker does.
struct LibraryFacts {
  // Such as "libcublasLt.so.13".
  std::string name;
  // The worker's use of it, and the consequence if it is missing.
  std::string use;
  // Without it, workers cannot compute on a GPU.
  bool needed = false;
  // Empty: not found.
  std::string path;
};

// The CUDA installation of this machine.
struct CudaFacts {
  // Directory of the toolkit with which Bazel would build; empty: none.
  std::string toolkit;
  // Such as "550.54.15, CUDA 12.4"; empty: none.
  std::string driver;
  std::vector<GpuFacts> devices;
  std::vector<LibraryFacts> libraries;
  // A worker of this build can compute on a GPU of this machine.
  bool usable = false;
  // The reason if not `usable`, worded like the worker's error.
  std::string reason;
};

// Loads the driver's library, if there is one, which starts threads.
CudaFacts ProbeCuda();

// Returns an error, worded like the worker's, for the first missing library that the worker needs; empty: none is
// missing.
std::string WhyLibraryMissing(const std::vector<LibraryFacts>& libraries);

}  // namespace ballast
