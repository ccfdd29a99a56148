// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/job_launch.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/launch/testing/job_launch_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr char kWorkerKilled[] = "role: ROLE_WORKER rank: 1 incarnation: 1: was killed by signal 9 (SIGKILL)";

TEST_F(JobLaunchTest, EndsWellWhenAllWorkersDo) {
  const LaunchResult result = RunWell();
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(connected_, "127.0.0.1:4242");
  EXPECT_THAT(Log("server-1"), HasSubstr("drained"));
}

TEST_F(JobLaunchTest, GivesEachProcessItsPart) {
  Run();
  EXPECT_THAT(Log("server-0"),
              HasSubstr("--rank 0 --listen 127.0.0.1:0 --servers 2 --workers 2 --address_file " + run_dir_));
  EXPECT_THAT(Log("server-1"),
              HasSubstr("--rank 1 --listen 127.0.0.1:0 --servers 2 --workers 2 --coordinator 127.0.0.1:4242"));
  const std::string common =
      " --job job.textproto --coordinator 127.0.0.1:4242 --device auto --threads 3 --gather_timeout 300 --gpus 2";
  const std::string http = " --http_port 0 --http_address_file " + run_dir_ + "/logs/worker-";
  const std::string flight = " --flight_dir " + run_dir_ + "/logs\n";
  EXPECT_EQ(Log("worker-0"), "worker 0: --rank 0" + common + " --run_dir " + run_dir_ + http + "0.http" + flight);
  EXPECT_EQ(Log("worker-1"), "worker 1: --rank 1" + common + http + "1.http" + flight);
}

TEST_F(JobLaunchTest, ShowsProgress) {
  worker_ = "await asked\n";
  asked_ = [&] { Touch("asked"); };
  EXPECT_EQ(Run().exit_status, 0);
  EXPECT_THAT(shown_.str(), HasSubstr("epoch 1/5\n"));
}

// The job ends before anyone has asked for its progress.
TEST_F(JobLaunchTest, ShowsTheEpochsOfARunOfAnInstant) {
  worker_ = R"(line='{"kind":"epoch","epoch":EPOCH,"step":9,"examples":9,"seconds":0.1,"epoch_examples":9,'
line="$line"'"train_loss":0.5,"samples_per_second":90}'
[ $rank = 0 ] && for epoch in 1 2 3; do echo "$line" | sed "s/EPOCH/$epoch/" >> $folder/metrics.jsonl; done
exit 0
)";
  RunWell();
  for (int epoch : {1, 2, 3})
    EXPECT_THAT(shown_.str(), HasSubstr(absl::StrCat("epoch ", epoch, "/3 done  train loss 0.5  90 samples/s\n")));
}

TEST_F(JobLaunchTest, NamesAWorkerThatFailsAndStopsTheOthers) {
  worker_ =
      absl::StrCat("[ $rank = 1 ] && echo 'step 3' && echo 'error: loss is NaN at step 3' && exit 1\n", kWaitForTerm);
  RunToFailure(1, "worker 1", "ended with status 1: loss is NaN at step 3");
  EXPECT_THAT(shown_.str(), HasSubstr("  step 3\n"));
  EXPECT_LT(seconds_, 5);
}

TEST_F(JobLaunchTest, NamesAServerThatIsKilledWhileItStarts) {
  server_ = "echo 'about to die'; kill -KILL $$";
  RunToFailure(1, "server 0", kKilled);
  EXPECT_THAT(shown_.str(), HasSubstr("  about to die\n"));
}

TEST_F(JobLaunchTest, NamesAServerThatLeavesTooEarly) {
  server_ = absl::StrCat("[ $rank = 1 ] && exit 0\n", kGoodServer);
  worker_ = kWaitForTerm;
  RunToFailure(1, "server 1", "ended with status 0 before the job was done");
}

TEST_F(JobLaunchTest, ExitsWithTwoWhenAWorkerFoundBadInput) {
  worker_ = "echo 'error: images.gz: want 47040016 bytes, got 12'; exit 2\n";
  RunToFailure(2, "worker [01]", "ended with status 2: images.gz: want 47040016 bytes, got 12");
}

TEST_F(JobLaunchTest, ExitsWithSeventyFiveWhenOthersWereMissing) {
  worker_ = "echo 'error: the job has not gathered within 2s: server 7 to join'; exit 75\n";
  RunToFailure(75, "worker [01]", "ended with status 75: the job has not gathered within 2s: server 7 to join");
}

// Worker 1, which the coordinator may blame, ends only after worker 0 was reaped. Each test appends how.
constexpr char kEndAfterWorker0[] = R"(
if [ $rank = 0 ]; then
  await pid
  echo 'error: the job failed'
  put $folder/first $$
  exit 1
fi
put $folder/pid $$
await first
while kill -0 $(cat $folder/first) 2> /dev/null; do :; done
)";

TEST_F(JobLaunchTest, BlamesTheFirstCauseThoughAnotherEndsBefore) {
  // No text says that worker 0 ended because the coordinator told it of worker 1.
  progress_.failed = true;
  worker_ = absl::StrCat(kEndAfterWorker0, "echo 'error: bad loss'\nexit 1\n");
  EXPECT_THAT(Run().error, MatchesRegex("worker 1 \\(process [0-9]+\\) ended with status 1: bad loss"));
}

TEST_F(JobLaunchTest, AnnouncesNoRestartOnceTheJobHasFailed) {
  // Worker 1, which the coordinator blames, is killed while the launch waits for it.
  progress_.failed = true;
  worker_ = absl::StrCat(kEndAfterWorker0, "kill -KILL $$\n");
  EXPECT_THAT(Run().error, MatchesRegex("worker 0 \\(process [0-9]+\\) ended with status 1: the job failed"));
  EXPECT_THAT(shown_.str(), Not(HasSubstr("restarting it")));
}

// Worker 1 dies once.
constexpr char kDieOnce[] = R"(
if [ $rank = 1 ] && [ ! -e $folder/pid ]; then
  echo 'first life'
  put $folder/pid $$
  kill -KILL $$
fi
[ $rank = 1 ] && echo 'second life' && touch $folder/lived
await lived
)";

TEST_F(JobLaunchTest, StartsAWorkerAgainThatDiedAndTellsTheCoordinator) {
  worker_ = kDieOnce;
  EXPECT_EQ(RunWell().restarts, 1);
  EXPECT_THAT(shown_.str(), RestartOf("worker 1"));
  EXPECT_THAT(Log("worker-1"), ContainsRegex("first life\n(.|\n)*second life\n")) << "one log of both";
  EXPECT_THAT(ends_, ElementsAre(kWorkerKilled));
}

TEST_F(JobLaunchTest, StartsAWorkerAgainOnceTheCoordinatorKnowsThatTheOneBeforeIsGone) {
  worker_ = kDieOnce;
  progress_.failures = 12;
  RunWell();
  EXPECT_THAT(ends_, ElementsAre(kWorkerKilled));
  EXPECT_GE(seconds_, 1) << "asked again every 0.1 s";
}

TEST_F(JobLaunchTest, AWorkerThatIsKilledAfterItsPartIsDoneIsNotStartedAgain) {
  worker_ = absl::StrReplaceAll(kDieOnce, {{"await lived", "await pid"}});
  progress_.finished = true;
  EXPECT_EQ(RunWell().restarts, 0);
  EXPECT_THAT(Log("worker-1"), Not(HasSubstr("second life")));
}

TEST_F(JobLaunchTest, StartsAWorkerAgainThatLostItsDevice) {
  worker_ = absl::StrReplaceAll(kDieOnce, {{"kill -KILL $$", "echo 'error: cuda device: gone'; exit 3"}});
  EXPECT_EQ(RunWell().restarts, 1);
}

TEST_F(JobLaunchTest, GivesAWorker0UpThatDiesAgainAndAgain) {
  worker_ = absl::StrCat("[ $rank = 0 ] && kill -KILL $$\n", kWaitForTerm);
  EXPECT_EQ(RunToFailure(1, "worker 0", kKilled).restarts, 3);
  EXPECT_GE(seconds_, 1.4) << "0.2 s, 0.4 s, 0.8 s";
  EXPECT_THAT(shown_.str(), HasSubstr("restarting it in 800ms (restart 3 of 3)"));
}

TEST_F(JobLaunchTest, WithoutAnotherWorkerTheOthersGoOn) {
  worker_ = "[ $rank = 1 ] && kill -KILL $$\nawait gone\n";
  TouchWhen("gone", [&] { return Shown("the job continues without it"); });
  EXPECT_EQ(RunWell().restarts, 3);
}

// Server 1 dies once.
constexpr char kMortalServer[] = R"(
[ $rank = 1 ] && [ -e $folder/doomed ] && rm $folder/doomed && mortal=1
trap 'echo drained; exit 0' TERM
put "$file" 127.0.0.1:424$rank
[ -n "$mortal" ] && kill -KILL $$
[ $rank = 1 ] && touch $folder/returned
stay
)";

TEST_F(JobLaunchTest, StartsAServerAgainInItsPlaceWhereTheJobOutlivesIt) {
  server_ = kMortalServer;
  Touch("doomed");
  worker_ = "await returned\n";
  plan_.durability.set_mode(v1::Durability::WAL);
  EXPECT_EQ(RunWell().restarts, 1);
  EXPECT_THAT(Log("server-1"), HasSubstr("--listen 127.0.0.1:0 "));
  EXPECT_THAT(Log("server-1"), HasSubstr("--listen 127.0.0.1:4241 ")) << "the address that the others know";
  EXPECT_THAT(Log("server-1"), HasSubstr("--state_dir " + run_dir_ + "/state/shard-1"));
}

TEST_F(JobLaunchTest, AServersDeathEndsAJobThatDoesNotOutliveIt) {
  server_ = kMortalServer;
  Touch("doomed");
  worker_ = kWaitForTerm;
  EXPECT_EQ(RunToFailure(1, "server 1", kKilled).restarts, 0);
}

TEST_F(JobLaunchTest, ChaosKillsAndThatDoesNotCount) {
  worker_ = "echo life >> $folder/lives\nwhile [ $(wc -l < $folder/lives) -lt 7 ]; do :; done\n";
  plan_.chaos = {.kill_worker = absl::Milliseconds(300)};
  EXPECT_GE(RunWell().restarts, 5) << "more than 3 for one of them";
  EXPECT_THAT(shown_.str(), ContainsRegex("chaos: killing worker [01] \\(process [0-9]+\\)"));
}

TEST_F(JobLaunchTest, ChaosLeavesTheWorkersTheTimeToSave) {
  worker_ = "await trained\nsleep 2\n";
  plan_.chaos = {.kill_worker = absl::Milliseconds(300)};
  TouchWhen("trained", [&] { return Shown("chaos: killing"); });
  RunWell();
}

TEST_F(JobLaunchTest, LetsWorkersSaveWhenInterrupted) {
  worker_ = kWaitForTerm;
  asked_ = [&] {
    if (WorkersAreReady()) raise(SIGINT);
  };
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 130);
  EXPECT_EQ(result.error, "");
  EXPECT_THAT(Log("worker-0"), HasSubstr("saved"));
  EXPECT_THAT(Log("worker-1"), HasSubstr("saved"));
  EXPECT_THAT(Log("server-0"), HasSubstr("drained"));
}

TEST_F(JobLaunchTest, KillsAtOnceWhenInterruptedTwice) {
  worker_ = "trap '' TERM; echo ready; stay";
  asked_ = [&] {
    if (!WorkersAreReady()) return;
    raise(SIGINT);
    raise(SIGTERM);
  };
  EXPECT_EQ(Run().exit_status, 130);
  EXPECT_LT(seconds_, 4);
}

TEST_F(JobLaunchTest, LeavesNoTemporaryFileOfAProcessThatItKills) {
  worker_ = R"(
trap 'touch $folder/model.safetensors.$$.tmp; touch $folder/stopping' TERM
echo ready
stay
)";
  Touch("notes.1.tmp");
  std::filesystem::create_directories(run_dir_ + "/checkpoints");
  const std::string checkpoint = "checkpoints/checkpoint-00000001.";
  for (const char* name : {"shard-0-of-2", "manifest.partial"}) Touch(checkpoint + name);
  server_ = absl::StrCat("[ $rank = 0 ] && touch $folder/logs/server-0.trace.$$.tmp\n", kGoodServer);
  std::thread second;
  asked_ = [&] {
    if (!WorkersAreReady() || second.joinable()) return;
    raise(SIGINT);
    second = std::thread([this, launch = getpid()] {
      while (!std::filesystem::exists(run_dir_ + "/stopping")) std::this_thread::yield();
      kill(launch, SIGINT);
    });
  };
  EXPECT_EQ(Run().exit_status, 130);
  second.join();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir_)) {
    const std::string name = entry.path().filename();
    EXPECT_FALSE(absl::EndsWith(name, ".tmp") && name != "notes.1.tmp") << name;
  }
  EXPECT_TRUE(std::filesystem::is_empty(run_dir_ + "/checkpoints")) << "an incomplete one";
  EXPECT_TRUE(std::filesystem::exists(run_dir_ + "/notes.1.tmp")) << "it is not the run's";
}

TEST_F(JobLaunchTest, AJobThatStartsFromTheBeginningContinuesInItsDirectory) {
  plan_.durability.set_mode(v1::Durability::CHECKPOINT);
  server_ = absl::StrCat(
      "[ $rank = 1 ] && [ ! -e $folder/died ] && await started && touch $folder/died && kill -9 $$\n", kGoodServer);
  worker_ = "[ -e $folder/died ] && exit 0\ntouch $folder/started\nstay\n";
  RunWell();
  EXPECT_THAT(shown_.str(), HasSubstr("there is no checkpoint yet; the job starts from the beginning\n"));
  EXPECT_THAT(Log("worker-0"), HasSubstr(" --run_dir " + run_dir_ + " --http_port 0"));
  EXPECT_THAT(Log("worker-0"), HasSubstr(" --run_dir " + run_dir_ + " --continue_run --http_port 0"));
  EXPECT_THAT(Log("worker-1"), Not(HasSubstr("--continue_run")));
}

TEST_F(JobLaunchTest, KillsProcessesThatDoNotHeed) {
  worker_ = R"(
[ $rank = 0 ] && await deaf && exit 1
trap '' TERM
touch $folder/deaf
stay
)";
  RunToFailure(1, "worker 0", "ended with status 1");
  EXPECT_GE(seconds_, 5);
  EXPECT_LT(seconds_, 9);
}

TEST_F(JobLaunchTest, MergesLogsByName) {
  Run();
  EXPECT_THAT(log_lines_, ::testing::Contains(HasSubstr("[server 1] server 1: ")));
  EXPECT_THAT(log_lines_, ::testing::Contains(HasSubstr("[worker 0] worker 0: ")));
}

}  // namespace
}  // namespace ballast
