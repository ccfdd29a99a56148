// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ballast {

struct GpuFacts {
  std::string name;
  // "9.0".
  std::string compute_capability;
  uint64_t memory_bytes = 0;
  // Why no worker computes on it; empty: one would.
  std::string unfit;
};

// One of NVIDIA's libraries, as the worker looks for it.
struct LibraryFacts {
  // "libcublasLt.so.13".
  std::string name;
  // What a worker does with it, and what it does without.
  std::string use;
  // Without it no worker computes on a GPU here.
  bool needed = false;
  // Where it was found; empty: nowhere.
  std::string path;
};

// What of CUDA this machine has.
struct CudaFacts {
  // Folder that Bazel would build with; empty: none.
  std::string toolkit;
  // "550.54.15, CUDA 12.4"; empty: none.
  std::string driver;
  std::vector<GpuFacts> devices;
  std::vector<LibraryFacts> libraries;
  // A worker of this build computes on a GPU here.
  bool usable = false;
  // Why not, in the worker's own words.
  std::string reason;
};

// Asks the driver's own library, which is loaded for it and need not be there; starts threads.
CudaFacts ProbeCuda();

// Of the libraries that a worker of this build may load: a missing one that it needs is a reason, in the worker's own
// words; empty: it has all.
std::string WhyLibraryMissing(const std::vector<LibraryFacts>& libraries);

}  // namespace ballast
