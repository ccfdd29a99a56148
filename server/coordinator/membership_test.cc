// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/membership.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

class MembershipTest : public testing::Test {
 protected:
  absl::Time now_ = absl::UnixEpoch();
  Membership membership_{1, 2, absl::Seconds(5)};
};

TEST_F(MembershipTest, GivesTheLowestFreeRank) {
  EXPECT_EQ(membership_.Join(MemberRole::kWorker, 1, "", "a", now_)->rank, 1);
  EXPECT_EQ(membership_.Join(MemberRole::kWorker, std::nullopt, "", "b", now_)->rank, 0);
  EXPECT_EQ(membership_.Join(MemberRole::kWorker, std::nullopt, "", "c", now_).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(MembershipTest, SaysWhoIsMissing) {
  EXPECT_EQ(membership_.Missing(), "server 0, worker 0, worker 1");
  ASSERT_TRUE(membership_.Join(MemberRole::kServer, 0, "a:1", "s", now_).ok());
  ASSERT_TRUE(membership_.Join(MemberRole::kWorker, 0, "", "w", now_).ok());
  EXPECT_EQ(membership_.Missing(), "worker 1");
  EXPECT_EQ(membership_.MissingServers(), "");
}

TEST_F(MembershipTest, RefusesARankThatALiveMemberHas) {
  ASSERT_TRUE(membership_.Join(MemberRole::kWorker, 0, "", "host, process 1", now_).ok());
  const absl::Status status = membership_.Join(MemberRole::kWorker, 0, "", "host, process 2", now_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(status.message(), "worker 0 (host, process 1) has that rank and is alive; got host, process 2");
}

TEST_F(MembershipTest, RaisesTheIncarnationOfAMemberThatComesBack) {
  const Membership::Id first = *membership_.Join(MemberRole::kWorker, 0, "", "a", now_);
  now_ += absl::Seconds(5);
  ASSERT_EQ(membership_.Expire(now_).size(), 1);
  const Membership::Id second = *membership_.Join(MemberRole::kWorker, 0, "", "b", now_);
  EXPECT_GT(second.incarnation, first.incarnation);
  EXPECT_EQ(membership_.Heartbeat(first, now_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(membership_.Heartbeat(second, now_).ok());
}

TEST_F(MembershipTest, GivesUpOnlyWhoIsSilent) {
  const Membership::Id quiet = *membership_.Join(MemberRole::kWorker, 0, "", "quiet", now_);
  const Membership::Id lively = *membership_.Join(MemberRole::kWorker, 1, "", "lively", now_);
  now_ += absl::Seconds(4);
  ASSERT_TRUE(membership_.Heartbeat(lively, now_).ok());
  now_ += absl::Seconds(1);
  const auto lost = membership_.Expire(now_);
  ASSERT_EQ(lost.size(), 1);
  EXPECT_EQ(Describe(lost[0]), "worker 0 (quiet)");
  EXPECT_EQ(membership_.Heartbeat(quiet, now_).message(), "worker 0 (quiet) is no longer part of the job");
}

TEST_F(MembershipTest, AServerThatWasGivenUpIsBackWithItsNextHeartbeatUnlessItWasReplaced) {
  const Membership::Id server = *membership_.Join(MemberRole::kServer, 0, "a:1", "slow", now_);
  now_ += absl::Seconds(5);
  ASSERT_EQ(membership_.Expire(now_).size(), 1);
  EXPECT_FALSE(membership_.AnyJoined(MemberRole::kServer));
  ASSERT_TRUE(membership_.Heartbeat(server, now_).ok());
  EXPECT_TRUE(membership_.AnyJoined(MemberRole::kServer));
  EXPECT_EQ(membership_.Join(MemberRole::kServer, 0, "a:1", "new", now_)->incarnation, 2);
  EXPECT_EQ(membership_.Heartbeat(server, now_).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(MembershipTest, RefusesARankBeyondTheJob) {
  EXPECT_EQ(membership_.Join(MemberRole::kServer, 1, "a:1", "s", now_).status().message(),
            "got server rank 1, want below 1, the number of servers in the job");
}

TEST(MembershipOfPairsTest, AStandbyTakesOverWithBothOfItsAddresses) {
  const absl::Time now = absl::UnixEpoch();
  Membership membership(1, 1, absl::Seconds(5), /*pairs=*/true);
  ASSERT_TRUE(membership.Join(MemberRole::kServer, 0, "a:1", "server", now, 1, "a:2").ok());
  ASSERT_TRUE(membership.Join(MemberRole::kStandby, 0, "b:1", "standby", now, 2, "b:2").ok());
  membership.Promote(0, now);
  EXPECT_EQ(membership.ServerAddresses(&Membership::Member::address), std::vector<std::string>{"b:1"});
  EXPECT_EQ(membership.ServerAddresses(&Membership::Member::control_address), std::vector<std::string>{"b:2"});
}

TEST_F(MembershipTest, OneWhoHasLeftIsNotLost) {
  const Membership::Id id = *membership_.Join(MemberRole::kWorker, 0, "", "a", now_);
  ASSERT_TRUE(membership_.Leave(id, Membership::State::kLeft, "", now_).ok());
  ASSERT_TRUE(membership_.Leave(id, Membership::State::kLeft, "", now_).ok());
  now_ += absl::Hours(1);
  EXPECT_TRUE(membership_.Expire(now_).empty());
  EXPECT_EQ(membership_.Missing(), "server 0, worker 0, worker 1");
  EXPECT_EQ(membership_.Join(MemberRole::kWorker, std::nullopt, "", "b", now_)->rank, 0);
}

}  // namespace
}  // namespace ballast
