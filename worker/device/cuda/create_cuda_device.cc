// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/gpu_choice.h"
#include "worker/device/cuda/library/nccl_library.h"
#include "worker/device/cuda/nccl_reducer.h"
#include "worker/device/factory/cuda_device.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options) { return OpenCudaDevice(options); }

absl::StatusOr<std::vector<int>> UsableCudaGpus() {
  const absl::StatusOr<std::vector<Gpu>> gpus = UsableGpus();
  if (!gpus.ok()) return gpus.status();
  std::vector<int> numbers;
  for (const Gpu& gpu : *gpus) numbers.push_back(gpu.index);
  return numbers;
}

absl::StatusOr<std::unique_ptr<Reducer>> CreateCudaReducer(absl::Span<const NamedDevice> devices) {
  for (const NamedDevice& device : devices) {
    if (QueueOf(*device.device) == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("device ", device.name, " is not a GPU"));
    }
  }
  const absl::StatusOr<const Nccl*> nccl = LoadNccl();
  if (!nccl.ok()) return nccl.status();
  return MakeNcclReducer(**nccl, devices);
}

}  // namespace ballast
