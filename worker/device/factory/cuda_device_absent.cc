// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/program/cuda_support.h"
#include "worker/device/factory/cuda_device.h"

namespace ballast {

namespace {

absl::Status Absent() {
  return absl::FailedPreconditionError(absl::StrCat("--device cuda: ", WhyBuildLacksCuda(0),
                                                    "; build with CUDA, use --device cpu, or use --device auto to "
                                                    "take the CPU if there is no GPU"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions&) { return Absent(); }

absl::StatusOr<std::vector<int>> UsableCudaGpus() { return Absent(); }

absl::StatusOr<std::unique_ptr<Reducer>> CreateCudaReducer(absl::Span<const NamedDevice>) { return Absent(); }

}  // namespace ballast
