// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/stream/stream_order.h"

#include <gmock/gmock.h>

#include <memory>
#include <numeric>
#include <vector>

#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/cuda/memory/cuda_buffer.h"
#include "worker/device/cuda/memory/host_copies.h"

namespace ballast {
namespace {

using ::testing::Each;

// Uses a GPU that runs work late, so that missing order shows.
class StreamOrderTest : public ::testing::Test {
 protected:
  // Three pieces of two floats.
  StreamOrderTest() : staging_(2, 3) {
    emulator::Reset({});
    order_ = *StreamOrder::Create();
    memory_ = std::make_unique<MemoryPool>(*MemoryPool::Create(0, order_->compute()));
    halves_ = std::make_unique<HalfCopies>(memory_.get());
    copies_ = std::make_unique<HostCopies>(order_.get(), &staging_, &pinned_);
  }

  std::unique_ptr<CudaBuffer> Make(int64_t size) {
    return std::make_unique<CudaBuffer>(*memory_->Take(size * sizeof(float)), size, ElementType::kFp32,
                                        CudaBuffer::Parts{*memory_, *order_, *halves_});
  }

  std::unique_ptr<CudaBuffer> MakeWith(const std::vector<float>& values) {
    std::unique_ptr<CudaBuffer> buffer = Make(values.size());
    EXPECT_TRUE(copies_->Upload(values, *buffer, 0).ok());
    return buffer;
  }

  // Issues an operation: to[i] = from[i] + 1; records when it ran.
  void AddOne(const CudaBuffer& from, const CudaBuffer& to) {
    BufferUse* const operands[] = {&from.use(), &to.use()};
    ASSERT_TRUE(order_->BeforeOperation(operands).ok());
    emulator::Enqueue(
        "add one", order_->compute(),
        [this, a = static_cast<const float*>(from.data()), b = static_cast<float*>(to.data()), n = to.size()] {
          for (int64_t i = 0; i < n; ++i) b[i] = a[i] + 1;
          ++ran_;
        });
    order_->AfterOperation(operands);
  }

  std::vector<float> Get(const CudaBuffer& buffer) {
    std::vector<float> values(buffer.size());
    const absl::Status status = copies_->Download(buffer, 0, absl::MakeSpan(values));
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }

  StagingPool staging_;
  PinnedHost pinned_;
  std::unique_ptr<StreamOrder> order_;
  std::unique_ptr<MemoryPool> memory_;
  std::unique_ptr<HalfCopies> halves_;
  std::unique_ptr<HostCopies> copies_;
  int ran_ = 0;
};

TEST_F(StreamOrderTest, AnOperationWaitsForTheUploadOfWhatItReads) {
  const auto a = MakeWith({5, 6}), b = Make(2);
  AddOne(*a, *b);
  EXPECT_EQ(Get(*b), std::vector<float>({6, 7}));
}

TEST_F(StreamOrderTest, AnUploadWaitsForTheOperationThatReadsWhatItOverwrites) {
  const auto a = MakeWith({5, 6}), b = Make(2);
  AddOne(*a, *b);
  ASSERT_TRUE(copies_->Upload({50, 60}, *a, 0).ok());
  // Runs all uploads, and the work that they depend on.
  cudaStreamSynchronize(order_->upload());
  EXPECT_EQ(Get(*b), std::vector<float>({6, 7}));
  EXPECT_EQ(Get(*a), std::vector<float>({50, 60}));
}

TEST_F(StreamOrderTest, AnUploadWaitsForNoLaterOperationOnOtherBuffers) {
  const auto a = Make(2), b = Make(2), c = Make(2);
  AddOne(*a, *b);
  // Makes the order record the end of the first operation.
  Get(*b);
  EXPECT_EQ(ran_, 1);
  AddOne(*b, *c);
  ASSERT_TRUE(copies_->Upload({1, 2}, *a, 0).ok());
  cudaStreamSynchronize(order_->upload());
  EXPECT_EQ(ran_, 1);
}

TEST_F(StreamOrderTest, ADownloadWaitsForNoLaterOperation) {
  const auto a = MakeWith({1, 2}), b = Make(2), c = Make(2);
  AddOne(*a, *b);
  // The copy of b records the end of the first operation; the second operation comes after it.
  ASSERT_TRUE(order_->BeforeDownload(b->use()).ok());
  AddOne(*a, *c);
  EXPECT_EQ(Get(*b), std::vector<float>({2, 3}));
  EXPECT_EQ(ran_, 1);
}

TEST_F(StreamOrderTest, CopiesAfterAMarkWaitForNoOperationThatWasIssuedAfterIt) {
  const auto a = MakeWith({1, 2}), b = Make(2), c = Make(2);
  AddOne(*a, *b);
  ASSERT_TRUE(order_->Mark().ok());
  AddOne(*a, *c);
  EXPECT_EQ(Get(*b), std::vector<float>({2, 3}));
  ASSERT_TRUE(copies_->Upload({5, 6}, *b, 0).ok());
  cudaStreamSynchronize(order_->upload());
  EXPECT_EQ(ran_, 1);
}

TEST_F(StreamOrderTest, MarksThatNobodyWaitsForUseNoMoreThanAHandfulOfEvents) {
  const auto a = Make(2), b = Make(2);
  for (int i = 0; i < 1000; ++i) {
    AddOne(*a, *b);
    ASSERT_TRUE(order_->Mark().ok());
    ASSERT_TRUE(order_->Mark().ok());
    cudaStreamSynchronize(order_->compute());
  }
  EXPECT_LT(emulator::Count().events, 12);
}

TEST_F(StreamOrderTest, ADownloadWaitsForTheUploadBeforeIt) {
  const auto a = MakeWith({1, 2, 3, 4});
  EXPECT_EQ(Get(*a), std::vector<float>({1, 2, 3, 4}));
}

TEST_F(StreamOrderTest, CopiesOfManyPiecesKeepTheirPlaces) {
  std::vector<float> values(101);
  std::iota(values.begin(), values.end(), 0.0f);
  const auto a = MakeWith(values);
  EXPECT_EQ(Get(*a), values);
  std::vector<float> some(7);
  ASSERT_TRUE(copies_->Download(*a, 90, absl::MakeSpan(some)).ok());
  EXPECT_EQ(some, std::vector<float>({90, 91, 92, 93, 94, 95, 96}));
}

TEST_F(StreamOrderTest, ValuesMayBeReusedOnceTheUploadHasReturned) {
  const auto a = Make(2);
  std::vector<float> values = {1, 2};
  ASSERT_TRUE(copies_->Upload(values, *a, 0).ok());
  values = {8, 9};
  EXPECT_EQ(Get(*a), std::vector<float>({1, 2}));
}

TEST_F(StreamOrderTest, ABufferGoesOnlyAfterItsUploadAndItsOperations) {
  const auto b = Make(2);
  {
    const auto a = MakeWith({5, 6});
    AddOne(*a, *b);
    ASSERT_TRUE(copies_->Upload({7, 8}, *a, 0).ok());
  }
  cudaStreamSynchronize(order_->compute());
  cudaStreamSynchronize(order_->upload());
  EXPECT_EQ(Get(*b), std::vector<float>({6, 7}));
  EXPECT_EQ(emulator::Count().device_bytes, 2 * sizeof(float));
}

TEST_F(StreamOrderTest, ThousandsOfStepsNeedAHandfulOfEvents) {
  const auto a = Make(2), b = Make(2);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(copies_->Upload({1, 2}, *a, 0).ok());
    AddOne(*a, *b);
    Get(*b);
  }
  EXPECT_LT(emulator::Count().events, 12);
}

TEST_F(StreamOrderTest, ACopyThatFailsSaysWhichCallDid) {
  const auto a = Make(2);
  emulator::FailCall("cudaMemcpyAsync", cudaErrorIllegalAddress, 0);
  const absl::Status status = copies_->Upload({1, 2}, *a, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("cudaMemcpyAsync: cudaErrorIllegalAddress"));
  // No piece was lost.
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(copies_->Upload({3, 4}, *a, 0).ok());
  EXPECT_EQ(Get(*a), std::vector<float>({3, 4}));
}

}  // namespace
}  // namespace ballast
