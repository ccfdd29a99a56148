// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/host_copies.h"

#include <gtest/gtest.h>

#include "worker/device/cuda/emulator/emulated_gpu.h"

namespace ballast {
namespace {

class StagingPoolTest : public ::testing::Test {
 protected:
  StagingPoolTest() {
    emulator::Reset({});
    stream_ = *MakeStream();
  }

  // Enqueues work that a piece waits for; counts its runs.
  void Enqueue() {
    emulator::Enqueue("work", stream_.get(), [this] { ++ran_; });
  }

  Stream stream_;
  int ran_ = 0;
};

TEST_F(StagingPoolTest, PiecesAreUsedAgain) {
  StagingPool pool(4, 8);
  for (int i = 0; i < 100; ++i) {
    StagingPool::Piece* const piece = *pool.Take();
    ASSERT_TRUE(pool.GiveBack(piece, stream_.get()).ok());
    cudaStreamSynchronize(stream_.get());
  }
  EXPECT_EQ(emulator::Count().host_allocations, 1);
}

TEST_F(StagingPoolTest, APieceInUseIsNotWaitedForWhileThereMayBeMore) {
  StagingPool pool(4, 2);
  StagingPool::Piece* const first = *pool.Take();
  Enqueue();
  ASSERT_TRUE(pool.GiveBack(first, stream_.get()).ok());
  EXPECT_NE(*pool.Take(), first);
  EXPECT_EQ(ran_, 0);
}

TEST_F(StagingPoolTest, WithNoMoreToMakeItWaitsForTheCopyGivenBackFirst) {
  StagingPool pool(4, 1);
  StagingPool::Piece* const only = *pool.Take();
  Enqueue();
  ASSERT_TRUE(pool.GiveBack(only, stream_.get()).ok());
  EXPECT_EQ(*pool.Take(), only);
  EXPECT_EQ(ran_, 1);
}

TEST_F(StagingPoolTest, TakeFreeAnswersNullInsteadOfWaiting) {
  StagingPool pool(4, 1);
  StagingPool::Piece* const only = *pool.TakeFree();
  ASSERT_NE(only, nullptr);
  EXPECT_EQ(*pool.TakeFree(), nullptr);
  Enqueue();
  ASSERT_TRUE(pool.GiveBack(only, stream_.get()).ok());
  EXPECT_EQ(*pool.TakeFree(), nullptr);
  EXPECT_EQ(ran_, 0);
  cudaStreamSynchronize(stream_.get());
  EXPECT_EQ(*pool.TakeFree(), only);
}

TEST_F(StagingPoolTest, WhatCannotBePinnedIsAnError) {
  StagingPool pool(4, 2);
  emulator::FailCall("cudaHostAlloc", cudaErrorMemoryAllocation, 0);
  EXPECT_EQ(pool.Take().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(pool.Take().ok());
}

}  // namespace

}  // namespace ballast
