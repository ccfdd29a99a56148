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
};

// What of CUDA this machine has.
struct CudaFacts {
  // Folder that Bazel would build with; empty: none.
  std::string toolkit;
  // "550.54.15, CUDA 12.4"; empty: none.
  std::string driver;
  std::vector<GpuFacts> devices;
  // A worker that was built with CUDA could compute on a GPU.
  bool usable = false;
  // Why not.
  std::string reason;
};

// Asks the driver's own library, which is loaded for it and need not be there; starts threads.
CudaFacts ProbeCuda();

}  // namespace ballast
