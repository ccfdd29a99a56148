// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace ballast {

// Settings for computing on a GPU.
struct CudaOptions {
  // CUDA index of the GPU; the first usable GPU if not set.
  std::optional<int> gpu;
  // Times several algorithms for each new product shape and keeps the fastest. If false, the library's heuristic
  // chooses, which gives the same bits in every run.
  bool autotune = true;
  // Captures repeated segments of a model as CUDA graphs, which take the CPU less time to issue.
  bool graphs = true;
  // Directory that stores timing results for later runs; empty: they are not stored.
  std::string cache_folder;
};

// Stores timing results under $XDG_CACHE_HOME, otherwise under ~/.cache; nowhere if neither variable is set.
CudaOptions CachingCudaOptions();

}  // namespace ballast
