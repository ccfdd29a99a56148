// SPDX-License-Identifier: Apache-2.0
#include "server/shard_host.h"

#include <memory>
#include <string>

#include "common/status/error_reason.h"
#include "gtest/gtest.h"
#include "server/durability/shard_store_fixture.h"

namespace ballast {
namespace {

class ShardHostTest : public testing::Test {
 protected:
  std::unique_ptr<ShardHost> Make() {
    return std::make_unique<ShardHost>(
        options_, nullptr, [this] { ++heartbeats_; },
        [](const std::string&) { return absl::UnavailableError("no standby in this test"); });
  }

  ServerOptions options_;
  int heartbeats_ = 0;
};

TEST_F(ShardHostTest, RefusesAJobWhoseDurabilityItCannotGive) {
  options_.state_dir = NewFolder();
  for (const bool with_standby : {false, true}) {
    options_.with_standby = with_standby;
    const std::unique_ptr<ShardHost> host = Make();
    ASSERT_TRUE(host->Open().ok());
    const JobConfig job = Job(with_standby ? v1::Durability::WAL : v1::Durability::STANDBY);
    const absl::Status status = host->shard().Declare(job, {Tensor(1, "w", 3)}).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kFailedPrecondition,
                              with_standby ? "which needs durability STANDBY" : "was started without --with_standby"));
    EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_NO_STORAGE);
  }
}

TEST_F(ShardHostTest, RecoversTheShardOfTheProcessBefore) {
  options_.state_dir = NewFolder();
  int recovered = 0;
  options_.on_recovered = [&](const ShardStore::Recovered&) { ++recovered; };
  std::unique_ptr<ShardHost> host = Make();
  ASSERT_TRUE(host->Open().ok());
  EXPECT_EQ(recovered, 0);
  ASSERT_TRUE(host->shard().Declare(Job(v1::Durability::WAL), {Tensor(1, "w", 3)}).ok());
  host.reset();
  host = Make();
  ASSERT_TRUE(host->Open().ok());
  EXPECT_EQ(recovered, 1);
  EXPECT_EQ(host->shard().job_name(), "job");
}

TEST_F(ShardHostTest, OpensNoDirectoryIfTheCheckpointToResumeFromIsMissing) {
  options_.checkpoint_dir = NewFolder();
  options_.resume = options_.checkpoint_dir + "/missing";
  const std::unique_ptr<ShardHost> host = Make();
  EXPECT_EQ(host->Open().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(host->resume(), nullptr);
  EXPECT_EQ(host->checkpoints(), nullptr);
}

TEST_F(ShardHostTest, ReportsACheckpointOnceItsShardIsCaptured) {
  const std::unique_ptr<ShardHost> host = Make();
  ASSERT_TRUE(host->Open().ok());
  const CoordinatorMember::Events events = host->MemberEvents();
  EXPECT_EQ(events.checkpoint_part().id(), 0u);
  events.on_capture(7, 1);
  host->services().Shutdown();
  EXPECT_EQ(events.checkpoint_part().id(), 7u);
  EXPECT_EQ(heartbeats_, 1);
}

TEST_F(ShardHostTest, AStandbyIsReadyBeforeTheJobBegins) {
  options_.with_standby = true;
  const std::unique_ptr<ShardHost> host = Make();
  ASSERT_TRUE(host->Open().ok());
  const CoordinatorMember::Events events = host->MemberEvents();
  EXPECT_TRUE(absl::IsUnavailable(host->Ready())) << "before it has joined";
  v1::Member standby;
  standby.set_role(v1::ROLE_STANDBY);
  standby.set_incarnation(1);
  events.on_part(standby);
  EXPECT_TRUE(absl::IsUnavailable(host->Ready())) << "before it knows the job's state";
  events.on_state(v1::JOB_STATE_GATHERING);
  EXPECT_TRUE(host->Ready().ok()) << host->Ready();
  // From here on it has to have the shard.
  events.on_state(v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(absl::IsUnavailable(host->Ready()));
}

TEST_F(ShardHostTest, ADisplacedServerMayStartAgainOnlyWithAStandby) {
  for (bool with_standby : {false, true}) {
    absl::Status fatal, displaced;
    options_.with_standby = with_standby;
    options_.on_fatal = [&](absl::Status status) { fatal = std::move(status); };
    options_.on_displaced = [&](absl::Status status) { displaced = std::move(status); };
    const std::unique_ptr<ShardHost> host = Make();
    host->MemberEvents().on_displaced(absl::AbortedError("replaced"));
    EXPECT_EQ((with_standby ? displaced : fatal).message(), "replaced");
    EXPECT_TRUE((with_standby ? fatal : displaced).ok());
  }
}

}  // namespace
}  // namespace ballast
