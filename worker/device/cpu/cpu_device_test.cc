// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/cpu_device.h"

#include <gmock/gmock.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/device/conformance/device_conformance_test.h"
#include "worker/device/cpu/im2col_convolution.h"

namespace ballast {
namespace {

DeviceUnderTest Cpu(int threads) {
  return {absl::StrCat("threads", threads), [threads] { return CreateCpuDevice(threads); }};
}

// The convolution of a static binary.
DeviceUnderTest Im2col() {
  return {"im2col", [] { return CreateCpuDevice(2, MakeIm2colConvolution()); }};
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformanceTest, ::testing::Values(Cpu(1), Cpu(2), Im2col()),
                         [](const auto& info) { return info.param.name; });

TEST(CpuDeviceTest, DescribesItsLibraryAndThreads) {
  EXPECT_THAT(CreateCpuDevice(1)->Describe(), ::testing::MatchesRegex("cpu \\(OpenBLAS, .+, 1 thread\\)"));
  EXPECT_THAT(CreateCpuDevice(2)->Describe(), ::testing::HasSubstr("2 threads"));
}

TEST(CpuDeviceTest, MemoryIsGivenOutUpToItsEndAndTakenBack) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1, 4000);
  EXPECT_EQ(device->Memory().free, 4000);
  std::unique_ptr<Buffer> buffer = *device->Allocate(900);
  EXPECT_EQ(device->Memory().free, 400);
  EXPECT_EQ(device->Allocate(101).status(),
            absl::ResourceExhaustedError(
                "cpu device: got 101 floats to allocate, want at most 100; its total memory is 1000 floats"));
  buffer.reset();
  EXPECT_EQ(device->Memory().free, 4000);
  EXPECT_TRUE(device->Allocate(1000).ok());
}

TEST(CpuDeviceTest, PeakIsTheMostAtOnce) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  std::unique_ptr<Buffer> first = *device->Allocate(100), second = *device->Allocate(50);
  first.reset();
  EXPECT_EQ(device->PeakBytes(), 600);
  device->ResetPeak();
  EXPECT_EQ(device->PeakBytes(), 200);
}

TEST(CpuDeviceTest, ComputesTf32InFp32) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  EXPECT_EQ(device->SetPrecision(Precision::kFp32).value(), Precision::kFp32);
  EXPECT_EQ(device->SetPrecision(Precision::kTf32).value(), Precision::kFp32);
}

TEST(CpuDeviceTest, RefusesHalfPrecisionsWithTheWayOut) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  for (const auto& [precision, name] : {std::pair(Precision::kFp16, "fp16"), std::pair(Precision::kBf16, "bf16")}) {
    EXPECT_EQ(device->SetPrecision(precision).status(),
              absl::UnimplementedError(absl::StrCat("cpu device: got precision ", name,
                                                    ", want fp32: use a GPU (--device cuda), or --precision fp32")));
  }
}

TEST(CpuDeviceTest, ComputesRowsOfALargeWeightGradientOnDemand) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  constexpr int64_t kBatch = 16, kUnits = 300, kInputs = 400;
  const std::unique_ptr<Buffer> dy = *device->Allocate(kBatch * kUnits), x = *device->Allocate(kBatch * kInputs),
                                whole = *device->Allocate(kUnits * kInputs), rows = *device->Allocate(kUnits * kInputs);
  for (const auto& buffer : {dy.get(), x.get()}) {
    float next = 0;
    for (float& value : buffer->host()) value = std::sin(++next);
  }
  const Factor a{{dy.get(), kBatch, kUnits}, true}, b{{x.get(), kBatch, kInputs}};
  device->Multiply(a, b, 1.0f, 0.0f, {whole.get(), kUnits, kInputs});
  const std::unique_ptr<RowsOfProduct> product = device->MultiplyByRows(a, b, {rows.get(), kUnits, kInputs});
  if (product == nullptr) GTEST_SKIP() << "this processor has no kernel for it";
  EXPECT_EQ(rows->host()[0], 0);
  product->Compute(0, 10);
  EXPECT_EQ(rows->host()[0], whole->host()[0]);
  EXPECT_EQ(rows->host().back(), 0);
  product->Compute(10, kUnits);
  EXPECT_EQ(rows->host(), whole->host());
  EXPECT_EQ(device->MultiplyByRows({{x.get(), 2, 2}, true}, {{x.get(), 2, 2}}, {rows.get(), 2, 2}), nullptr);
}

TEST(CpuDeviceDeathTest, FactorsThatDoNotFitAbort) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  const std::unique_ptr<Buffer> memory = *device->Allocate(4);
  const Matrix row{memory.get(), 1, 2};
  EXPECT_DEATH(device->Multiply({row}, {row}, 1.0f, 0.0f, {memory.get(), 1, 1}), "do not fit");
}

TEST(CpuDeviceDeathTest, MatrixOutsideItsBufferAborts) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  const std::unique_ptr<Buffer> memory = *device->Allocate(4);
  EXPECT_DEATH(device->Activate(Activation::kRelu, {memory.get(), 5, 1}, {memory.get(), 5, 1}), "outside its buffer");
}

}  // namespace
}  // namespace ballast
