// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/testing/job_launch_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ReplicatedJobLaunchTest : public JobLaunchTest {
 protected:
  ReplicatedJobLaunchTest() { plan_.durability.set_mode(v1::Durability::STANDBY); }
};

TEST_F(ReplicatedJobLaunchTest, GivesEachServerAStandbyAndTheCoordinatorAFolder) {
  EXPECT_EQ(Run().exit_status, 0) << shown_.str();
  EXPECT_THAT(Log("server-0"), HasSubstr("--rank 0 --listen 127.0.0.1:0 --servers 2 --workers 2 --address_file " +
                                         run_dir_ + "/logs/server-0.address --with_standby --state_dir " + run_dir_ +
                                         "/state/shard-0 --checkpoint_dir "));
  const std::pair<const char*, const char*> others[] = {{"standby-0", "0"}, {"server-1", "1"}, {"standby-1", "1"}};
  for (const auto& [name, rank] : others) {
    EXPECT_THAT(Log(name),
                HasSubstr(absl::StrCat("--rank ", rank,
                                       " --listen 127.0.0.1:0 --servers 2 --workers 2 --coordinator 127.0.0.1:4242 "
                                       "--address_file ",
                                       run_dir_, "/logs/", name, ".address --with_standby --checkpoint_dir ")));
  }
  EXPECT_THAT(log_lines_, ::testing::Contains(HasSubstr("[standby 1] server 1: ")));
}

// The second process of rank 1 dies once, and writes its process id to the file that the fake coordinator reads.
constexpr char kMortalStandby[] = R"(
trap 'echo drained; exit 0' TERM
case $file in *standby-1.address) doomed=1; port=4243 ;; *) port=424$rank ;; esac
put $file 127.0.0.1:$port
put $file.pid $$
if [ -n "$doomed" ] && [ ! -e $folder/pid ]; then
  put $folder/pid $$
  kill -KILL $$
fi
[ -n "$doomed" ] && touch $folder/returned
stay
)";

TEST_F(ReplicatedJobLaunchTest, StartsAStandbyAgainInItsPlaceAndTellsTheCoordinatorOfItsEnd) {
  server_ = kMortalStandby;
  // By then it had become the server.
  progress_.role = v1::ROLE_SERVER;
  worker_ = "await heard; await returned\n";
  TouchWhen("heard", [&] { return !ends_.empty(); });
  EXPECT_EQ(RunWell().restarts, 1);
  EXPECT_THAT(shown_.str(), RestartOf("standby 1"));
  EXPECT_THAT(Log("standby-1"), HasSubstr("--rank 1 --listen 127.0.0.1:4243 ")) << "the address that it had";
  EXPECT_THAT(Log("standby-1"), HasSubstr("--with_standby"));
  EXPECT_THAT(ends_, ElementsAre("role: ROLE_SERVER rank: 1 incarnation: 1: was killed by signal 9 (SIGKILL)"));
}

TEST_F(ReplicatedJobLaunchTest, WithoutRestartsTheOtherOneOfAPairGoesOn) {
  server_ = kMortalStandby;
  plan_.max_restarts = 0;
  worker_ = "await gone\n";
  TouchWhen("gone", [&] { return Shown("; the job continues without it"); });
  EXPECT_EQ(RunWell().restarts, 0);
}

TEST_F(ReplicatedJobLaunchTest, TheLossOfBothOfAPairEndsTheJob) {
  server_ =
      absl::StrReplaceAll(kMortalStandby, {{"*standby-1.address", "*1.address"}, {"[ ! -e $folder/pid ]", ": both"}});
  plan_.max_restarts = 0;
  worker_ = kWaitForTerm;
  RunToFailure(1, "(server|standby) 1", kKilled);
}

TEST_F(ReplicatedJobLaunchTest, ChaosKillsServersAndStandbysThatAreInStep) {
  server_ = absl::StrReplaceAll(kMortalStandby, {{"kill -KILL $$", "true"}});
  worker_ = "await enough\n";
  TouchWhen("enough", [&] { return Shown("killing server") && Shown("killing standby"); });
  progress_.pairs = true;
  plan_.chaos = {.kill_server = absl::Milliseconds(100)};
  RunWell();
  EXPECT_THAT(shown_.str(), ContainsRegex("chaos: killing (server|standby) [01] \\(process [0-9]+\\)"));
}

TEST_F(ReplicatedJobLaunchTest, ChaosLeavesAPairAloneWhoseStandbyHasNotAll) {
  worker_ = "await enough\n";
  TouchWhen("enough", [times = 0]() mutable { return ++times == 4; });
  plan_.chaos = {.kill_server = absl::Milliseconds(100)};
  RunWell();
  EXPECT_THAT(shown_.str(), Not(HasSubstr("chaos: killing")));
}

}  // namespace
}  // namespace ballast
