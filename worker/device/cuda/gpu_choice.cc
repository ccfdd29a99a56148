// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/gpu_choice.h"

#include <cuda_runtime.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/program/cuda_support.h"
#include "worker/device/cuda/gemm/gemm.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

absl::Status Unusable(absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("--device cuda: ", why, "; or use --device cpu"));
}

GpuMode ModeOf(int index) {
  int mode = cudaComputeModeDefault;
  if (cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, index) != cudaSuccess) cudaGetLastError();
  if (mode == cudaComputeModeProhibited) return GpuMode::kProhibited;
  return mode == cudaComputeModeExclusiveProcess ? GpuMode::kExclusive : GpuMode::kShared;
}

// Sets `count`. Returns the reason if there is no GPU, otherwise "".
std::string CountGpus(int* count) {
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && *count == 0)) return WhyNoGpu();
  return std::string(CudaStatus(error, "cudaGetDeviceCount").message());
}

}  // namespace

absl::StatusOr<std::vector<Gpu>> UsableGpus() {
  int driver = 0, runtime = 0;
  absl::Status status = CudaStatus(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  if (!status.ok()) return Unusable(status.message());
  status = CudaStatus(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  if (!status.ok()) return Unusable(status.message());
  if (const std::string why = WhyDriverUnfit(driver, runtime); !why.empty()) return Unusable(why);
  int count = 0;
  if (const std::string why = CountGpus(&count); !why.empty()) return Unusable(why);
  std::string why;
  std::vector<Gpu> usable;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    status = CudaStatus(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    if (!status.ok()) return Unusable(status.message());
    const std::string unfit = WhyGpuUnfit(properties.name, properties.major, properties.minor);
    if (unfit.empty()) {
      usable.push_back({index, properties.name, properties.totalGlobalMem, properties.major, properties.minor});
    } else if (why.empty()) {
      why = unfit;
    }
  }
  if (usable.empty()) return Unusable(why);
  if (absl::Status library = CheckGemmLibrary(); !library.ok()) return Unusable(library.message());
  return usable;
}

absl::StatusOr<Gpu> ChooseGpu(std::optional<int> index) {
  absl::StatusOr<std::vector<Gpu>> usable = UsableGpus();
  if (!usable.ok()) return usable.status();
  std::string numbers;
  for (Gpu& gpu : *usable) {
    if (!index.has_value() || gpu.index == *index) return std::move(gpu);
    absl::StrAppend(&numbers, numbers.empty() ? "" : ", ", gpu.index);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("--device cuda: got GPU ", *index, ", want one of the usable GPUs: ", numbers));
}

absl::Status OpeningFailed(const Gpu& gpu, const absl::Status& status) {
  std::string why = absl::IsUnavailable(status) ? WhyGpuHeld(gpu.index, ModeOf(gpu.index)) : "";
  if (why.empty()) why = "stop the processes that use its memory (see nvidia-smi)";
  return absl::Status(
      status.code(),
      absl::StrCat("--device cuda: GPU ", gpu.index, ", ", gpu.name, ", cannot be opened: ", status.message(), "; ",
                   why, ", choose another GPU with CUDA_VISIBLE_DEVICES, or use --device cpu"));
}

}  // namespace ballast
