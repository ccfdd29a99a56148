// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

// What a worker asks of a GPU and its driver: one place, so that `ballast doctor` says what the worker does. Versions
// are CUDA's, 13000 for 13.0. Each answers why not, with what to do; empty: nothing is wrong.
namespace ballast {

// "13.0".
std::string CudaVersionText(int version);

// Of a build with that version of CUDA, 0 for one without.
std::string WhyBuildLacksCuda(int build_version);
// `driver_version` is the newest CUDA that the driver knows, 0: there is no driver. Drivers run what was built with
// their own major version or an older one.
std::string WhyDriverUnfit(int driver_version, int build_version);
std::string WhyGpuUnfit(absl::string_view name, int compute_major, int compute_minor);
std::string WhyNoGpu();

}  // namespace ballast
