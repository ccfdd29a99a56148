// SPDX-License-Identifier: Apache-2.0
#include "client/future.h"

#include <thread>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(FutureTest, IsReadyOnceThePromiseIsKept) {
  Promise<int> promise;
  Future<int> future = promise.GetFuture();
  EXPECT_FALSE(future.Ready());
  EXPECT_FALSE(future.WaitFor(absl::ZeroDuration()));
  promise.Set(7);
  EXPECT_TRUE(future.Ready());
  EXPECT_TRUE(future.WaitFor(absl::ZeroDuration()));
  EXPECT_EQ(future.Get().value(), 7);
}

TEST(FutureTest, GetWaitsForAnotherThreadAndSeesWhatItWrote) {
  int written = 0;
  Promise<int> promise;
  Future<int> future = promise.GetFuture();
  std::thread writer([&written, promise = std::move(promise)]() mutable {
    written = 41;
    promise.Set(42);
  });
  EXPECT_EQ(future.Get().value(), 42);
  EXPECT_EQ(written, 41);
  writer.join();
}

TEST(FutureTest, CopiesGiveTheSameResultAgain) {
  Future<int> future = MakeReadyFuture<int>(3);
  Future<int> copy = future;
  EXPECT_EQ(future.Get().value(), 3);
  EXPECT_EQ(future.Get().value(), 3);
  EXPECT_EQ(copy.Get().value(), 3);
}

TEST(FutureTest, DroppedPromiseEndsTheWait) {
  Future<int> future = Promise<int>().GetFuture();
  EXPECT_EQ(future.Get().status().code(), absl::StatusCode::kCancelled);
}

TEST(FutureTest, FirstResultStands) {
  Promise<int> promise;
  promise.Set(absl::UnavailableError("gone"));
  promise.Set(1);
  EXPECT_EQ(promise.GetFuture().Get().status(), absl::UnavailableError("gone"));
}

}  // namespace
}  // namespace ballast
