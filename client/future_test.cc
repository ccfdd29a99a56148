// SPDX-License-Identifier: Apache-2.0
#include "client/future.h"

#include <thread>
#include <vector>

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

TEST(FutureTest, CallbackGetsTheResultOnceWheneverItWasAdded) {
  Promise<int> promise;
  const Future<int> future = promise.GetFuture();
  std::vector<int> got;
  const auto append = [&got](const absl::StatusOr<int>& result) { got.push_back(result.value_or(-1)); };
  future.OnReady(append);
  EXPECT_TRUE(got.empty());
  promise.Set(5);
  promise.Set(6);
  EXPECT_EQ(got, std::vector<int>({5}));
  future.OnReady(append);
  EXPECT_EQ(got, std::vector<int>({5, 5}));
}

TEST(FutureTest, CallbackOfADroppedPromiseGetsCancelled) {
  absl::Status got;
  {
    const Promise<int> promise;
    promise.GetFuture().OnReady([&got](const absl::StatusOr<int>& result) { got = result.status(); });
  }
  EXPECT_EQ(got.code(), absl::StatusCode::kCancelled);
}

TEST(FutureTest, CallbackRunsInTheThreadThatSetsTheResult) {
  Promise<int> promise;
  std::thread::id ran;
  promise.GetFuture().OnReady([&ran](const absl::StatusOr<int>&) { ran = std::this_thread::get_id(); });
  std::thread::id setter;
  std::thread writer([&setter, promise = std::move(promise)]() mutable {
    setter = std::this_thread::get_id();
    promise.Set(1);
  });
  writer.join();
  EXPECT_EQ(ran, setter);
}

}  // namespace
}  // namespace ballast
