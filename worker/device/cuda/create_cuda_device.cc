// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/gpu_choice.h"
#include "worker/device/cuda_device.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options) { return OpenCudaDevice(options); }

absl::StatusOr<std::vector<int>> UsableCudaGpus() {
  const absl::StatusOr<std::vector<Gpu>> gpus = UsableGpus();
  if (!gpus.ok()) return gpus.status();
  std::vector<int> numbers;
  for (const Gpu& gpu : *gpus) numbers.push_back(gpu.index);
  return numbers;
}

}  // namespace ballast
