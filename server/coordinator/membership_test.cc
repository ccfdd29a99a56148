// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/membership.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

class MembershipTest : public testing::Test {
 protected:
  ManualClock clock_;
  Membership membership_{1, 2, absl::Seconds(5), &clock_};
};

TEST_F(MembershipTest, GivesTheLowestFreeRank) {
  EXPECT_EQ(membership_.Join(MemberRole::kWorker, 1, "", "a")->rank, 1);
  EXPECT_EQ(membership_.Join(MemberRole::kWorker, std::nullopt, "", "b")->rank, 0);
  EXPECT_EQ(membership_.Join(MemberRole::kWorker, std::nullopt, "", "c").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(MembershipTest, SaysWhoIsMissing) {
  EXPECT_EQ(membership_.Missing(), "server 0, worker 0, worker 1");
  ASSERT_TRUE(membership_.Join(MemberRole::kServer, 0, "a:1", "s").ok());
  ASSERT_TRUE(membership_.Join(MemberRole::kWorker, 0, "", "w").ok());
  EXPECT_EQ(membership_.Missing(), "worker 1");
  EXPECT_EQ(membership_.MissingServers(), "");
}

TEST_F(MembershipTest, RefusesARankThatALiveMemberHas) {
  ASSERT_TRUE(membership_.Join(MemberRole::kWorker, 0, "", "host, process 1").ok());
  const absl::Status status = membership_.Join(MemberRole::kWorker, 0, "", "host, process 2").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(status.message(), "worker 0 (host, process 1) has that rank and is alive; got host, process 2");
}

TEST_F(MembershipTest, RaisesTheIncarnationOfAMemberThatComesBack) {
  const Membership::Id first = *membership_.Join(MemberRole::kWorker, 0, "", "a");
  clock_.Advance(absl::Seconds(5));
  ASSERT_EQ(membership_.Expire().size(), 1);
  const Membership::Id second = *membership_.Join(MemberRole::kWorker, 0, "", "b");
  EXPECT_GT(second.incarnation, first.incarnation);
  EXPECT_EQ(membership_.Heartbeat(first).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(membership_.Heartbeat(second).ok());
}

TEST_F(MembershipTest, GivesUpOnlyWhoIsSilent) {
  const Membership::Id quiet = *membership_.Join(MemberRole::kWorker, 0, "", "quiet");
  const Membership::Id lively = *membership_.Join(MemberRole::kWorker, 1, "", "lively");
  clock_.Advance(absl::Seconds(4));
  ASSERT_TRUE(membership_.Heartbeat(lively).ok());
  clock_.Advance(absl::Seconds(1));
  const auto lost = membership_.Expire();
  ASSERT_EQ(lost.size(), 1);
  EXPECT_EQ(Describe(lost[0]), "worker 0 (quiet)");
  EXPECT_EQ(membership_.Heartbeat(quiet).message(), "worker 0 (quiet) is no longer part of the job");
}

TEST_F(MembershipTest, AServerThatWasGivenUpIsBackWithItsNextHeartbeatUnlessItWasReplaced) {
  const Membership::Id server = *membership_.Join(MemberRole::kServer, 0, "a:1", "slow");
  clock_.Advance(absl::Seconds(5));
  ASSERT_EQ(membership_.Expire().size(), 1);
  EXPECT_FALSE(membership_.AnyJoined(MemberRole::kServer));
  ASSERT_TRUE(membership_.Heartbeat(server).ok());
  EXPECT_TRUE(membership_.AnyJoined(MemberRole::kServer));
  EXPECT_EQ(membership_.Join(MemberRole::kServer, 0, "a:1", "new")->incarnation, 2);
  EXPECT_EQ(membership_.Heartbeat(server).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(MembershipTest, RefusesARankBeyondTheJob) {
  EXPECT_EQ(membership_.Join(MemberRole::kServer, 1, "a:1", "s").status().message(),
            "got server rank 1, want below 1, the number of servers in the job");
}

TEST(MembershipOfPairsTest, AStandbyTakesOverWithBothOfItsAddresses) {
  ManualClock clock;
  Membership membership(1, 1, absl::Seconds(5), &clock, /*pairs=*/true);
  ASSERT_TRUE(membership.Join(MemberRole::kServer, 0, "a:1", "server", 1, "a:2").ok());
  ASSERT_TRUE(membership.Join(MemberRole::kStandby, 0, "b:1", "standby", 2, "b:2").ok());
  membership.Promote(0);
  EXPECT_EQ(membership.ServerAddresses(), std::vector<std::string>{"b:1"});
  EXPECT_EQ(membership.ServerControlAddresses(), std::vector<std::string>{"b:2"});
}

TEST_F(MembershipTest, OneWhoHasLeftIsNotLost) {
  const Membership::Id id = *membership_.Join(MemberRole::kWorker, 0, "", "a");
  ASSERT_TRUE(membership_.Leave(id, Membership::State::kLeft).ok());
  ASSERT_TRUE(membership_.Leave(id, Membership::State::kLeft).ok());
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(membership_.Expire().empty());
  EXPECT_EQ(membership_.Missing(), "server 0, worker 0, worker 1");
  EXPECT_EQ(membership_.Join(MemberRole::kWorker, std::nullopt, "", "b")->rank, 0);
}

}  // namespace
}  // namespace ballast
