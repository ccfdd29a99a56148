// SPDX-License-Identifier: Apache-2.0
#include "client/shard_map_follower.h"

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::ElementsAre;
using testing::Ge;
using testing::SizeIs;

// Returns a map of that epoch, whose only shard has moved that often.
ShardMap MapOf(uint64_t epoch) {
  ShardMap map({"127.0.0.1:1"});
  while (map.epoch() < epoch) map.Move(0, "127.0.0.1:2", "");
  return map;
}

// A coordinator and a user of its maps.
class ShardMapFollowerTest : public testing::Test {
 protected:
  ~ShardMapFollowerTest() override {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    follower_.reset();
  }

  void Start(bool shards_move) {
    ShardMapFollower::Calls calls;
    calls.get = [this] { return Answer(0); };
    calls.await = [this](uint64_t newer_than, absl::Duration) { return Answer(newer_than); };
    calls.use = [this](const ShardMap& map) { return Use(map.epoch()); };
    calls.fail = [this](const std::string& reason) { failure_ = reason; };
    follower_ = std::make_unique<ShardMapFollower>(shards_move, std::move(calls));
  }

  void SetMap(absl::StatusOr<ShardMap> map) {
    absl::MutexLock lock(&mutex_);
    map_ = std::move(map);
  }

  // Returns the epochs of the used maps, once there are that many.
  std::vector<uint64_t> AwaitUsed(size_t count) { return Await(&ShardMapFollowerTest::used_, count); }

  // Returns the `newer_than` of all calls, 0 for `get`, once there are that many.
  std::vector<uint64_t> AwaitAsked(size_t count) { return Await(&ShardMapFollowerTest::asked_, count); }

  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusOr<ShardMap> map_ ABSL_GUARDED_BY(mutex_) = MapOf(1);
  absl::Status use_status_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> asked_ ABSL_GUARDED_BY(mutex_), used_ ABSL_GUARDED_BY(mutex_);
  // Set by the follower's thread; read after Join.
  std::string failure_;
  std::unique_ptr<ShardMapFollower> follower_;

 private:
  std::vector<uint64_t> Await(std::vector<uint64_t> ShardMapFollowerTest::*list, size_t count) {
    const auto enough = [&] { return (this->*list).size() >= count; };
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Minutes(1)));
    return this->*list;
  }

  absl::StatusOr<ShardMap> Answer(uint64_t newer_than) {
    absl::MutexLock lock(&mutex_);
    asked_.push_back(newer_than);
    const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return ended_ || !map_.ok() || map_->epoch() > newer_than;
    };
    mutex_.Await(absl::Condition(&ready));
    return map_;
  }

  absl::Status Use(uint64_t epoch) {
    absl::MutexLock lock(&mutex_);
    used_.push_back(epoch);
    if (use_status_.ok()) follower_->OnMapUsed(epoch);
    return use_status_;
  }
};

TEST_F(ShardMapFollowerTest, EachNewMapIsUsedOnceAfterTheFirst) {
  Start(/*shards_move=*/true);
  follower_->OnMapUsed(1);
  EXPECT_THAT(AwaitAsked(1), ElementsAre(1));
  SetMap(MapOf(2));
  EXPECT_THAT(AwaitAsked(2), ElementsAre(1, 2));
  SetMap(MapOf(5));
  EXPECT_THAT(AwaitAsked(3), ElementsAre(1, 2, 5));
  EXPECT_THAT(AwaitUsed(2), ElementsAre(2, 5));
}

TEST_F(ShardMapFollowerTest, AsksAgainAfterAnError) {
  SetMap(absl::UnavailableError("restarting"));
  Start(/*shards_move=*/true);
  follower_->OnMapUsed(1);
  EXPECT_THAT(AwaitAsked(3), SizeIs(Ge(3)));
  SetMap(MapOf(2));
  EXPECT_THAT(AwaitUsed(1), ElementsAre(2));
}

TEST_F(ShardMapFollowerTest, MapThatCannotBeUsedEndsTheFollowing) {
  for (bool shards_move : {false, true}) {
    failure_.clear();
    {
      absl::MutexLock lock(&mutex_);
      map_ = MapOf(2);
      used_.clear();
      use_status_ = absl::InvalidArgumentError("no TLS");
    }
    Start(shards_move);
    follower_->OnMapUsed(1);
    follower_->Refresh();
    // Without Stop: the thread ends by itself.
    follower_->Join();
    EXPECT_EQ(failure_, "no TLS");
    EXPECT_THAT(AwaitUsed(1), ElementsAre(2));
  }
}

TEST_F(ShardMapFollowerTest, MapOfShardsThatDoNotMoveIsGotOncePerRequest) {
  Start(/*shards_move=*/false);
  follower_->OnMapUsed(1);
  follower_->Refresh();
  EXPECT_THAT(AwaitUsed(1), ElementsAre(1));
  SetMap(absl::UnavailableError("restarting"));
  follower_->Refresh();
  EXPECT_THAT(AwaitAsked(2), ElementsAre(0, 0));
  SetMap(MapOf(2));
  follower_->Refresh();
  EXPECT_THAT(AwaitUsed(2), ElementsAre(1, 2));
  EXPECT_THAT(AwaitAsked(3), ElementsAre(0, 0, 0));
}

TEST_F(ShardMapFollowerTest, StopEndsItBeforeTheFirstMapWithoutACall) {
  for (bool shards_move : {false, true}) {
    Start(shards_move);
    follower_->Stop();
    follower_->Join();
  }
  EXPECT_THAT(AwaitAsked(0), ElementsAre());
}

}  // namespace
}  // namespace ballast
