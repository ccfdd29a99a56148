// SPDX-License-Identifier: Apache-2.0
#include "server/shard/pull_wait.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "server/policies/slice_policy.h"
#include "server/weights/optimizers/optimizer.h"

namespace ballast {
namespace {

constexpr WaitList::Ticket kTicket = 7;

// Three slices of a synchronous job with one worker; a push to a slice lets pulls at step 1 proceed there.
class PullWaitTest : public ::testing::Test {
 protected:
  PullWaitTest() {
    v1::Optimizer config;
    config.mutable_sgd()->set_learning_rate(1);
    optimizer_ = *MakeOptimizer(config);
    v1::TensorSpec spec;
    spec.set_name("w");
    spec.add_shape(1);
    v1::SliceRange range;
    range.set_elements(1);
    v1::ConsistencyPolicy policy;
    policy.mutable_sync();
    for (int i = 0; i < 3; ++i) {
      slices_.push_back(std::make_unique<Slice>(
          "w", range, std::make_unique<SliceWeights>(spec, range, optimizer_.get()), *MakeSlicePolicy(policy, 1)));
      awaited_.push_back(slices_.back().get());
    }
    room_ = *budget_.Reserve(PullWait::BytesOf(3));
  }

  // Returns the released tickets.
  std::vector<WaitList::Ticket> PushTo(size_t slice) {
    const float gradient = 1;
    return slices_[slice]
        ->Offer({.examples = 1}, 0, Gradient(absl::MakeConstSpan(&gradient, 1)), std::nullopt)
        .released;
  }

  std::vector<size_t> Waiting() const {
    std::vector<size_t> waiting;
    for (const auto& slice : slices_) waiting.push_back(slice->waiting());
    return waiting;
  }

  ByteBudget budget_{1 << 20};
  ByteBudget::Reservation room_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::unique_ptr<Slice>> slices_;
  std::vector<Awaited> awaited_;
};

TEST_F(PullWaitTest, WaitsAtOneSliceAtATime) {
  PullWait wait({.step = 1}, awaited_, 0, std::move(room_));
  EXPECT_FALSE(wait.Release(kTicket));
  EXPECT_EQ(Waiting(), (std::vector<size_t>{1, 0, 0}));
  // Skipped later, because it already allows the pull.
  EXPECT_TRUE(PushTo(1).empty());
  EXPECT_EQ(PushTo(0), std::vector<WaitList::Ticket>{kTicket});
  EXPECT_FALSE(wait.Release(kTicket));
  EXPECT_EQ(Waiting(), (std::vector<size_t>{0, 0, 1}));
  EXPECT_EQ(PushTo(2), std::vector<WaitList::Ticket>{kTicket});
  EXPECT_TRUE(wait.Release(kTicket));
  EXPECT_EQ(Waiting(), (std::vector<size_t>{0, 0, 0}));
}

TEST_F(PullWaitTest, LeavesItsSliceAndItsMemoryWhenItEnds) {
  PullWait wait({.step = 1}, awaited_, 0, std::move(room_));
  EXPECT_FALSE(wait.Release(kTicket));
  EXPECT_EQ(budget_.used(), PullWait::BytesOf(3));
  wait.End();
  EXPECT_EQ(budget_.used(), 0);
  EXPECT_EQ(Waiting(), (std::vector<size_t>{0, 0, 0}));
}

TEST_F(PullWaitTest, DoesNotBeginToWaitOnceItHasEnded) {
  PullWait wait({.step = 1}, awaited_, 0, std::move(room_));
  wait.End();
  EXPECT_FALSE(wait.Release(kTicket));
  EXPECT_EQ(Waiting(), (std::vector<size_t>{0, 0, 0}));
}

}  // namespace
}  // namespace ballast
