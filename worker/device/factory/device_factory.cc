// SPDX-License-Identifier: Apache-2.0
#include "worker/device/factory/device_factory.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/device/factory/cuda_device.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(std::string_view kind, int threads, const CudaOptions& cuda) {
  if (threads < 1 || threads > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("--threads: got ", threads, ", want a number from 1 to 1024"));
  }
  if (kind == "cpu") return CreateCpuDevice(threads);
  if (kind == "cuda") return CreateCudaDevice(cuda);
  if (kind == "auto") {
    absl::StatusOr<std::unique_ptr<Device>> gpu = CreateCudaDevice(cuda);
    if (gpu.ok()) return gpu;
    return CreateCpuDevice(threads);
  }
  return absl::InvalidArgumentError(absl::StrCat("--device: got \"", std::string(kind), "\", want auto, cpu or cuda"));
}

}  // namespace ballast
