// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

// A worker's requirements on GPU and driver, in one place so that `ballast doctor` and the worker agree. Versions are
// CUDA's, 13000 for 13.0. Each function returns the problem and its remedy; empty: no problem.
namespace ballast {

// Returns "13.0".
std::string CudaVersionText(int version);

// `build_version` is the CUDA version of the build, 0 without CUDA.
std::string WhyBuildLacksCuda(int build_version);
// `driver_version` is the newest CUDA version that the driver supports, 0 without a driver. A driver runs programs
// built with its own major version or an older one.
std::string WhyDriverUnfit(int driver_version, int build_version);
std::string WhyGpuUnfit(absl::string_view name, int compute_major, int compute_minor);
std::string WhyNoGpu();

// A GPU's compute mode: which processes may use it.
enum class GpuMode { kShared, kProhibited, kExclusive };

// Says why a process could not open a GPU. `index` is nvidia-smi's if CUDA_VISIBLE_DEVICES is not set.
std::string WhyGpuHeld(int index, GpuMode mode);

}  // namespace ballast
