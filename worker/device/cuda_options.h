// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace ballast {

// How a GPU computes.
struct CudaOptions {
  // CUDA's number of the GPU; the first usable one where it is not set.
  std::optional<int> gpu;
  // Whether each new shape of a product is tried with several algorithms, and the fastest kept. Without it the
  // library's own guess is taken, which gives the same bits in every run.
  bool autotune = true;
  // Whether what a model computes again and again is kept as CUDA graphs, which takes the CPU less time to issue.
  bool graphs = true;
  // Folder in which what was measured is kept for the next run; empty: nowhere.
  std::string cache_folder;
};

// Keeps what was measured in the user's cache folder: $XDG_CACHE_HOME, else ~/.cache; nowhere where there is none.
CudaOptions CachingCudaOptions();

}  // namespace ballast
