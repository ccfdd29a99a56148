// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/transfer.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PeerCopyTest : public ::testing::TestWithParam<emulator::Schedule> {
 protected:
  void SetUp() override {
    emulator::Reset({.schedule = GetParam(), .devices = 2});
    from_ = *OpenCudaDevice({.gpu = 0});
    to_ = *OpenCudaDevice({.gpu = 1});
  }

  std::vector<float> Values(Device& device, Buffer& buffer) {
    std::vector<float> values(buffer.size());
    EXPECT_TRUE(device.Download(buffer, 0, absl::MakeSpan(values)).ok());
    return values;
  }

  std::unique_ptr<Device> from_, to_;
  Transfer transfer_;
};

INSTANTIATE_TEST_SUITE_P(Schedules, PeerCopyTest,
                         ::testing::Values(emulator::Schedule::kLate, emulator::Schedule::kAtOnce,
                                           emulator::Schedule::kRandom));

TEST_P(PeerCopyTest, ComesAfterWhatWasIssuedOnBothAndBeforeWhatComes) {
  const std::unique_ptr<Buffer> x = *from_->Allocate(100), y = *to_->Allocate(100), z = *to_->Allocate(100);
  const Matrix source{x.get(), 10, 10}, target{y.get(), 10, 10}, result{z.get(), 10, 10};
  for (int round = 1; round <= 20; ++round) {
    from_->Fill(round, source);
    to_->Fill(-1, target);
    ASSERT_TRUE(transfer_.Copy(*from_, source, *to_, target).ok());
    // Neither operation may overtake the copy.
    from_->Fill(-2, source);
    to_->Add(target, target, result);
    EXPECT_THAT(Values(*to_, *z), Each(2.0f * round));
  }
}

TEST_P(PeerCopyTest, AnUploadBehindItComesLater) {
  const std::unique_ptr<Buffer> x = *from_->Allocate(4), y = *to_->Allocate(4);
  from_->Fill(1, {x.get(), 2, 2});
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 2, 2}).ok());
  const std::vector<float> later = {7, 7, 7, 7};
  ASSERT_TRUE(from_->Upload(later, *x, 0).ok());
  ASSERT_TRUE(to_->Upload(later, *y, 0).ok());
  EXPECT_THAT(Values(*to_, *y), Each(7.0f));
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 2, 2}).ok());
  EXPECT_THAT(Values(*to_, *y), Each(7.0f));
}

TEST_P(PeerCopyTest, ElementsIn16BitsGoAsTheyAre) {
  ASSERT_TRUE(from_->SetPrecision(Precision::kBf16).ok() && to_->SetPrecision(Precision::kBf16).ok());
  // The second half is not copied and does not change.
  const std::unique_ptr<Buffer> x = *from_->AllocateActivations(8), y = *to_->AllocateActivations(6);
  ASSERT_TRUE(from_->Upload({1, -2, 0.5, 3, 9, 9, 9, 9}, *x, 0).ok());
  to_->Fill(7, {y.get(), 1, 6});
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 2, 2}).ok());
  EXPECT_THAT(Values(*to_, *y), ElementsAre(1, -2, 0.5, 3, 7, 7));
}

TEST_P(PeerCopyTest, ElementsOfAnotherTypeAreConverted) {
  ASSERT_TRUE(to_->SetPrecision(Precision::kFp16).ok());
  for (const bool activations : {false, true}) {
    const std::unique_ptr<Buffer> x = *(activations ? from_->AllocateActivations(4) : from_->Allocate(4));
    const std::unique_ptr<Buffer> y = *to_->AllocateActivations(4);
    ASSERT_TRUE(from_->Upload({1, -2, 0.5, 1.0001f}, *x, 0).ok());
    ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 2, 2}).ok());
    EXPECT_THAT(Values(*to_, *y), ElementsAre(1, -2, 0.5, 1));
  }
}

TEST_P(PeerCopyTest, TheHostHoldsNothingInBetween) {
  const std::unique_ptr<Buffer> x = *from_->Allocate(4), y = *to_->Allocate(4);
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 2, 2}).ok());
  ASSERT_TRUE(from_->Synchronize().ok());
  ASSERT_TRUE(to_->Synchronize().ok());
  EXPECT_EQ(emulator::Count().host_allocations, 0);
}

TEST_P(PeerCopyTest, OpensThePoolOfEachGpuOnce) {
  const std::unique_ptr<Buffer> x = *from_->Allocate(4), y = *to_->Allocate(4);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 2, 2}).ok());
    ASSERT_TRUE(transfer_.Copy(*to_, {y.get(), 2, 2}, *from_, {x.get(), 2, 2}).ok());
  }
  // A second opening would fail and say so.
  emulator::FailCall("cudaMemPoolSetAccess", cudaErrorInvalidValue, 0);
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 2, 2}).ok());
  ASSERT_TRUE(to_->Synchronize().ok() && from_->Synchronize().ok());
  EXPECT_EQ(emulator::Count().direct_copies, 7);
  EXPECT_EQ(emulator::Count().staged_copies, 0);
}

TEST_P(PeerCopyTest, GpusThatReachEachOtherAlreadyCopyDirectly) {
  const std::unique_ptr<Buffer> x = *from_->Allocate(4), y = *to_->Allocate(4);
  emulator::FailCall("cudaDeviceEnablePeerAccess", cudaErrorPeerAccessAlreadyEnabled, 0);
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 2, 2}).ok());
  ASSERT_TRUE(to_->Synchronize().ok() && from_->Synchronize().ok());
  EXPECT_EQ(emulator::Count().direct_copies, 1);
}

class SeparateGpusTest : public ::testing::Test {
 protected:
  // Copies twice between two GPUs; returns the log.
  std::string CopyTwice() {
    const std::unique_ptr<Device> from = *OpenCudaDevice({.gpu = 0}), to = *OpenCudaDevice({.gpu = 1});
    const std::unique_ptr<Buffer> x = *from->Allocate(4), y = *to->Allocate(4);
    from->Fill(3, {x.get(), 2, 2});
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(to->CopyFrom(*from, {x.get(), 2, 2}, {y.get(), 2, 2}));
    std::string log = ::testing::internal::GetCapturedStderr();
    std::vector<float> values(4);
    EXPECT_TRUE(to->Download(*y, 0, absl::MakeSpan(values)).ok());
    EXPECT_THAT(values, Each(3.0f));
    return log;
  }
};

TEST_F(SeparateGpusTest, CopyThroughTheHostAndSayItOnce) {
  emulator::Reset({.devices = 2, .connected = false});
  EXPECT_EQ(CopyTwice(),
            "warning: GPU 1 cannot reach the memory of GPU 0 (the machine does not connect them); copies between them "
            "go through the host, which is slower\n");
  EXPECT_EQ(emulator::Count().staged_copies, 2);
}

TEST_F(SeparateGpusTest, APoolThatDoesNotOpenIsNamed) {
  emulator::Reset({.devices = 2});
  emulator::FailCall("cudaMemPoolSetAccess", cudaErrorInvalidValue, 0);
  EXPECT_THAT(CopyTwice(), HasSubstr("(cuda device: cudaMemPoolSetAccess: cudaErrorInvalidValue, "));
  EXPECT_EQ(emulator::Count().staged_copies, 2);
}

TEST_P(PeerCopyTest, AFailureIsToldByBoth) {
  const std::unique_ptr<Buffer> x = *from_->Allocate(4), y = *to_->Allocate(4);
  emulator::FailCall("cudaMemcpyPeerAsync", cudaErrorIllegalAddress, 0);
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 2, 2}).ok());
  EXPECT_FALSE(from_->Synchronize().ok());
  EXPECT_FALSE(to_->Synchronize().ok());
}

}  // namespace
}  // namespace ballast
