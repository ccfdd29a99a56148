// SPDX-License-Identifier: Apache-2.0
#include "common/program/cuda_support.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// Oldest architecture that kernels are compiled for; see bazel/cuda.bzl.
constexpr int kMinComputeMajor = 8;

}  // namespace

std::string CudaVersionText(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

std::string WhyBuildLacksCuda(int build_version) {
  if (build_version != 0) return "";
  return "this build has no CUDA support: no CUDA toolkit was found when it was built";
}

std::string WhyDriverUnfit(int driver_version, int build_version) {
  if (driver_version == 0) {
    return "no NVIDIA driver: libcuda.so.1 was not found; install the driver (in a container, start it with the GPUs)";
  }
  if (driver_version / 1000 >= build_version / 1000) return "";
  return absl::StrCat("the NVIDIA driver is too old: it supports CUDA ", CudaVersionText(driver_version),
                      ", want at least ", build_version / 1000, ".0; update the driver",
                      // The first driver for CUDA 13; see the release notes of the toolkit.
                      build_version / 1000 == 13 ? " to 580 or newer" : "");
}

std::string WhyGpuUnfit(absl::string_view name, int compute_major, int compute_minor) {
  if (compute_major >= kMinComputeMajor) return "";
  return absl::StrCat("the GPU is too old: ", name, " has compute capability ", compute_major, ".", compute_minor,
                      ", want at least ", kMinComputeMajor, ".0");
}

std::string WhyGpuHeld(int index, GpuMode mode) {
  const std::string reset = absl::StrCat("nvidia-smi -i ", index, " -c DEFAULT");
  switch (mode) {
    case GpuMode::kShared:
      break;
    case GpuMode::kProhibited:
      return absl::StrCat(
          "its compute mode is PROHIBITED: it computes for no process; an administrator can change that (", reset, ")");
    case GpuMode::kExclusive:
      return absl::StrCat(
          "its compute mode is EXCLUSIVE_PROCESS and another process holds it; stop that process (nvidia-smi names "
          "it), start one worker per GPU, or let an administrator allow several (",
          reset, ")");
  }
  return "";
}

std::string WhyNoGpu() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return "the NVIDIA driver finds no GPU; see nvidia-smi";
  return absl::StrCat("the NVIDIA driver finds no GPU, and CUDA_VISIBLE_DEVICES is \"", visible,
                      "\"; name a GPU there, or unset it");
}

}  // namespace ballast
