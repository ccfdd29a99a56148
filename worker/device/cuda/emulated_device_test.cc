// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/device/conformance/device_conformance_test.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"

// Runs the conformance suite on the real CUDA device and its kernels, on an emulated GPU.
namespace ballast {
namespace {

DeviceUnderTest Emulated(const std::string& name, emulator::Schedule schedule, uint32_t seed,
                         Precision precision = Precision::kFp32, double tolerance = 1e-5) {
  const auto open = [schedule, seed] {
    emulator::Reset({.schedule = schedule, .seed = seed});
    return OpenCudaDevice({});
  };
  return {name, open, tolerance, precision};
}

// One device for each combination of schedule and precision.
std::vector<DeviceUnderTest> AllEmulated() {
  std::vector<DeviceUnderTest> all;
  const std::tuple<const char*, emulator::Schedule, uint32_t> schedules[] = {
      {"late", emulator::Schedule::kLate, 0},
      {"at_once", emulator::Schedule::kAtOnce, 0},
      {"random1", emulator::Schedule::kRandom, 1},
      {"random2", emulator::Schedule::kRandom, 2},
  };
  for (const auto& [name, schedule, seed] : schedules) {
    all.push_back(Emulated(name, schedule, seed));
    all.push_back(Emulated(absl::StrCat("bf16_", name), schedule, seed, Precision::kBf16, 1e-2));
    all.push_back(Emulated(absl::StrCat("fp16_", name), schedule, seed, Precision::kFp16, 1e-2));
  }
  all.push_back(Emulated("tf32_late", emulator::Schedule::kLate, 0, Precision::kTf32, kTf32Tolerance));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceConformanceTest, ::testing::ValuesIn(AllEmulated()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ballast
