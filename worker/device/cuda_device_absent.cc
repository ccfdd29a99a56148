// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/cuda_support.h"
#include "worker/device/cuda_device.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions&) {
  return absl::FailedPreconditionError(absl::StrCat("--device cuda: ", WhyBuildLacksCuda(0),
                                                    "; build with one, or use --device cpu, or auto to take what "
                                                    "there is"));
}

}  // namespace ballast
