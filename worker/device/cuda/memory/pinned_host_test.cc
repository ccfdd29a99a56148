// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/pinned_host.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// 1 MiB, the least that is pinned.
constexpr int64_t kFloats = 1 << 18;

class PinnedHostTest : public ::testing::Test {
 protected:
  void SetUp() override { emulator::Reset({}); }
  void TearDown() override { EXPECT_EQ(emulator::Count().host_bytes, 0); }
};

TEST_F(PinnedHostTest, PinsLargeMemoryAndKnowsItUntilItsEnd) {
  PinnedHost host;
  std::unique_ptr<HostMemory> memory = host.Allocate(kFloats);
  const absl::Span<float> values = memory->values();
  EXPECT_TRUE(memory->pinned());
  EXPECT_EQ(values.size(), kFloats);
  EXPECT_THAT(values, Each(0.0f));
  EXPECT_TRUE(host.Contains(values));
  EXPECT_TRUE(host.Contains(values.subspan(kFloats - 1)));
  EXPECT_FALSE(host.Contains({values.data() + 1, kFloats}));
  memory.reset();
  EXPECT_FALSE(host.Contains(values));
}

TEST_F(PinnedHostTest, LeavesSmallMemoryAsItIs) {
  PinnedHost host;
  const std::unique_ptr<HostMemory> memory = host.Allocate(kFloats - 1);
  EXPECT_FALSE(memory->pinned());
  EXPECT_EQ(memory->values().size(), kFloats - 1);
  EXPECT_FALSE(host.Contains(memory->values()));
}

TEST_F(PinnedHostTest, BeyondTheLimitItSaysSoOnce) {
  PinnedHost host(2 << 20);
  std::unique_ptr<HostMemory> first = host.Allocate(kFloats), second = host.Allocate(kFloats);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(host.Allocate(kFloats)->pinned());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: some tensors' host memory is not pinned, so their copies to and from the GPU are slower: the "
            "limit for each GPU is 2 MiB\n");
  first.reset();
  EXPECT_TRUE(host.Allocate(kFloats)->pinned());
}

TEST_F(PinnedHostTest, MemoryThatCannotBePinnedIsOrdinary) {
  PinnedHost host(1 << 20);
  emulator::FailCall("cudaHostAlloc", cudaErrorMemoryAllocation, 0);
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(host.Allocate(kFloats)->pinned());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("cudaHostAlloc: cudaErrorMemoryAllocation"));
  // The limit counts only memory that is pinned.
  EXPECT_TRUE(host.Allocate(kFloats)->pinned());
}

TEST_F(PinnedHostTest, KnowsRegisteredMemoryUntilTheEndOfItsRegistration) {
  PinnedHost host;
  std::vector<float> values(kFloats);
  const absl::Span<char> bytes(reinterpret_cast<char*>(values.data()), kFloats * sizeof(float));
  std::unique_ptr<HostRegistration> registration = host.Register(bytes);
  EXPECT_TRUE(host.Contains(values));
  EXPECT_EQ(emulator::Count().host_bytes, bytes.size());
  registration.reset();
  EXPECT_FALSE(host.Contains(values));
}

TEST_F(PinnedHostTest, SeveralDevicesRegisterTheSameMemory) {
  PinnedHost first, second;
  std::vector<float> values(kFloats);
  const absl::Span<char> bytes(reinterpret_cast<char*>(values.data()), kFloats * sizeof(float));
  const std::unique_ptr<HostRegistration> one = first.Register(bytes), other = second.Register(bytes);
  EXPECT_TRUE(first.Contains(values));
  EXPECT_TRUE(second.Contains(values));
}

TEST_F(PinnedHostTest, ARefusedRegistrationIsAWarning) {
  PinnedHost host;
  std::vector<char> memory(1 << 20);
  emulator::FailCall("cudaHostRegister", cudaErrorMemoryAllocation, 0);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(host.Register(absl::MakeSpan(memory)), nullptr);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("warning: some tensors' host memory is not pinned, so their copies to and from the "
                                   "GPU are slower: cuda device: cudaHostRegister: cudaErrorMemoryAllocation"));
  PinnedHost small(1 << 19);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(small.Register(absl::MakeSpan(memory)), nullptr);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("the limit for each GPU is 0 MiB"));
}

class PinnedCopyTest : public ::testing::TestWithParam<emulator::Schedule> {
 protected:
  void SetUp() override {
    emulator::Reset({.schedule = GetParam()});
    device_ = *OpenCudaDevice({});
    memory_ = device_->AllocateHost(kFloats);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<HostMemory> memory_;
};

INSTANTIATE_TEST_SUITE_P(Schedules, PinnedCopyTest,
                         ::testing::Values(emulator::Schedule::kLate, emulator::Schedule::kAtOnce,
                                           emulator::Schedule::kRandom));

TEST_P(PinnedCopyTest, GoesBothWaysWithoutStaging) {
  const std::unique_ptr<Buffer> x = *device_->Allocate(kFloats);
  const absl::Span<float> values = memory_->values();
  values[0] = 1, values[kFloats - 1] = 2;
  ASSERT_TRUE(device_->Upload(values, *x, 0).ok());
  // The upload has read them.
  values[0] = values[kFloats - 1] = 7;
  device_->Scale(10, {x.get(), 1, kFloats});
  ASSERT_TRUE(device_->Download(*x, 0, values).ok());
  EXPECT_EQ(values[0], 10);
  EXPECT_EQ(values[kFloats - 1], 20);
  EXPECT_EQ(emulator::Count().host_allocations, 1);
}

TEST_P(PinnedCopyTest, ComesAfterEarlierOperationsAndBeforeLaterOnes) {
  const std::unique_ptr<Buffer> x = *device_->Allocate(4), y = *device_->Allocate(4);
  const Matrix source{x.get(), 2, 2}, target{y.get(), 2, 2};
  const absl::Span<float> values = memory_->values().first(4);
  for (int round = 1; round <= 20; ++round) {
    device_->Copy(source, target);
    values[0] = static_cast<float>(round);
    ASSERT_TRUE(device_->Upload(values, *x, 0).ok());
    device_->Add(source, target, target);
    ASSERT_TRUE(device_->Download(*y, 0, values).ok());
    EXPECT_EQ(values[0], 2 * round - 1);
  }
}

TEST_P(PinnedCopyTest, APartGoesToItsPlace) {
  const std::unique_ptr<Buffer> x = *device_->Allocate(4);
  memory_->values()[5] = 3;
  ASSERT_TRUE(device_->Upload(memory_->values().subspan(5, 2), *x, 1).ok());
  ASSERT_TRUE(device_->Download(*x, 0, memory_->values().subspan(8, 4)).ok());
  EXPECT_THAT(memory_->values().subspan(8, 4), ElementsAre(0, 3, 0, 0));
}

TEST_P(PinnedCopyTest, ElementsIn16BitsAreRoundedOnTheHost) {
  ASSERT_TRUE(device_->SetPrecision(Precision::kBf16).ok());
  const std::unique_ptr<Buffer> x = *device_->AllocateActivations(2);
  const absl::Span<float> values = memory_->values().first(2);
  values[0] = -2, values[1] = 1.0001f;
  ASSERT_TRUE(device_->Upload(values, *x, 0).ok());
  ASSERT_TRUE(device_->Download(*x, 0, values).ok());
  EXPECT_THAT(values, ElementsAre(-2, 1));
}

TEST_P(PinnedCopyTest, RegisteredMemoryNeedsNoStaging) {
  std::vector<float> values(kFloats);
  const std::unique_ptr<HostRegistration> registration =
      device_->RegisterHost({reinterpret_cast<char*>(values.data()), kFloats * sizeof(float)});
  const std::unique_ptr<Buffer> x = *device_->Allocate(kFloats);
  values[7] = 3;
  ASSERT_TRUE(device_->Upload(absl::MakeConstSpan(values).subspan(7, 1), *x, 5).ok());
  ASSERT_TRUE(device_->Download(*x, 4, absl::MakeSpan(values).first(2)).ok());
  EXPECT_EQ(values[1], 3);
  // The fixture has made it.
  EXPECT_EQ(emulator::Count().host_allocations, 1);
}

TEST_P(PinnedCopyTest, AFailureIsReported) {
  const std::unique_ptr<Buffer> x = *device_->Allocate(4);
  emulator::FailCall("cudaMemcpyAsync", cudaErrorIllegalAddress, 0);
  EXPECT_EQ(device_->Download(*x, 0, memory_->values().first(4)).code(), absl::StatusCode::kInternal);
}

class DownloadAllTest : public PinnedCopyTest {};

INSTANTIATE_TEST_SUITE_P(Schedules, DownloadAllTest,
                         ::testing::Values(emulator::Schedule::kLate, emulator::Schedule::kAtOnce,
                                           emulator::Schedule::kRandom));

// One wait for the staging memory and one for the copies.
TEST_P(DownloadAllTest, SmallBuffersTakeOneWait) {
  ASSERT_TRUE(device_->SetPrecision(Precision::kFp16).ok());
  const std::unique_ptr<Buffer> x = *device_->Allocate(3), y = *device_->AllocateActivations(5),
                                z = *device_->Allocate(0);
  device_->Fill(2, {x.get(), 1, 3});
  device_->Fill(-1, {y.get(), 1, 5});
  const int before = emulator::Count().waits;
  std::vector<float> first(3), second(4), none;
  ASSERT_TRUE(
      device_
          ->DownloadAll(
              {{x.get(), absl::MakeSpan(first)}, {z.get(), absl::MakeSpan(none)}, {y.get(), absl::MakeSpan(second)}})
          .ok());
  EXPECT_THAT(first, Each(2.0f));
  EXPECT_THAT(second, Each(-1.0f));
  EXPECT_EQ(emulator::Count().waits, before + 2);
  device_->Fill(3, {x.get(), 1, 3});
  ASSERT_TRUE(device_->DownloadAll({{x.get(), absl::MakeSpan(first)}}).ok());
  EXPECT_THAT(first, Each(3.0f));
}

// Pieces have 4 MiB.
TEST_P(DownloadAllTest, WhatDoesNotFitBesideTheOthersComesAfterThem) {
  const std::unique_ptr<Buffer> x = *device_->Allocate(600 << 10), y = *device_->Allocate(600 << 10),
                                z = *device_->Allocate(1);
  device_->Fill(1, {x.get(), 1, 600 << 10});
  device_->Fill(2, {y.get(), 1, 600 << 10});
  device_->Fill(3, {z.get(), 1, 1});
  std::vector<float> first(600 << 10), second(600 << 10), third(1);
  ASSERT_TRUE(
      device_
          ->DownloadAll(
              {{x.get(), absl::MakeSpan(first)}, {y.get(), absl::MakeSpan(second)}, {z.get(), absl::MakeSpan(third)}})
          .ok());
  EXPECT_THAT(first, Each(1.0f));
  EXPECT_THAT(second, Each(2.0f));
  EXPECT_THAT(third, Each(3.0f));
}

TEST_P(DownloadAllTest, AFailureIsReportedAndReturnsTheStagingMemory) {
  const std::unique_ptr<Buffer> x = *device_->Allocate(3);
  std::vector<float> values(3), more(4);
  EXPECT_EQ(device_->DownloadAll({{x.get(), absl::MakeSpan(more)}}).code(), absl::StatusCode::kOutOfRange);
  emulator::FailCall("cudaMemcpyAsync", cudaErrorIllegalAddress, 0);
  EXPECT_EQ(device_->DownloadAll({{x.get(), absl::MakeSpan(values)}}).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ballast
