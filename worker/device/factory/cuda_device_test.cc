// SPDX-License-Identifier: Apache-2.0
#include "worker/device/factory/cuda_device.h"

#include <gtest/gtest.h>

#include "worker/device/conformance/device_conformance_test.h"

namespace ballast {
namespace {

DeviceUnderTest Cuda(const char* name, Precision precision, bool autotune, double tolerance) {
  return {name, [autotune] { return CreateCudaDevice({.autotune = autotune}); }, tolerance, precision};
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformanceTest,
                         ::testing::Values(Cuda("fp32", Precision::kFp32, false, 1e-5),
                                           Cuda("fp32_autotuned", Precision::kFp32, true, 1e-5),
                                           Cuda("tf32", Precision::kTf32, false, kTf32Tolerance),
                                           Cuda("bf16", Precision::kBf16, false, 1e-2),
                                           Cuda("fp16", Precision::kFp16, false, 1e-2)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ballast
