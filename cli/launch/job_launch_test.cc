// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/job_launch.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// The first lines of each script.
constexpr char kHead[] = R"(#!/bin/sh
for word; do
  [ "$before" = --address_file ] && file=$word
  [ "$before" = --rank ] && rank=$word
  before=$word
done
folder=${0%/*}
echo "${0##*/} $rank: $*"
put() { echo "$2" > "$1.new" && mv "$1.new" "$1"; }
await() { while [ ! -e $folder/$1 ]; do :; done; }
stay() { while :; do tail -f /dev/null & wait; done; }
)";

// A server that runs until SIGTERM.
constexpr char kGoodServer[] = R"(
trap 'echo drained; exit 0' TERM
[ -n "$file" ] && put "$file" 127.0.0.1:4242
stay
)";

constexpr char kWaitForTerm[] = "trap 'echo saved; exit 130' TERM; echo ready; stay\n";

// In a regular expression.
constexpr char kKilled[] = "was killed by signal 9 \\(SIGKILL\\)";

constexpr char kWorkerKilled[] = "role: ROLE_WORKER rank: 1 incarnation: 1: was killed by signal 9 (SIGKILL)";

// A fake coordinator, polled twice a second; calls `asked` with each poll. Has one member, by default worker 1, whose
// process id it reads from a file. Records the ends that are reported to it.
class FakeProgress : public ProgressSource {
 public:
  struct Script {
    // Number of polls that fail first.
    int failures = 0;
    // The job is finished, and worker 1 has left it.
    bool finished = false;
    v1::Role role = v1::ROLE_WORKER;
    // The job has failed through the member.
    bool failed = false;
    // The answers to SaveCheckpoint; the last one is repeated.
    std::vector<v1::SaveCheckpointResponse> saves;
    // The members are the servers, read from the *.pid files next to their addresses; they are in step.
    bool pairs = false;
  };
  FakeProgress(Script script, std::function<void()> asked, const std::string& run_dir, std::vector<std::string>* ends)
      : script_(script), asked_(std::move(asked)), run_dir_(run_dir), ends_(ends) {}
  absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration) override {
    if (asked_) asked_();
    if (std::filesystem::exists(run_dir_ + "/pid") && script_.failures-- > 0) return absl::UnavailableError("away");
    v1::GetProgressResponse response;
    v1::JobProgress& progress = *response.mutable_progress();
    progress.set_state(v1::JOB_STATE_RUNNING);
    progress.set_epochs(5);
    progress.set_step(7);
    if (script_.pairs) {
      for (int rank : {0, 1}) {
        Add(absl::StrCat("/logs/server-", rank, ".address.pid"), v1::ROLE_SERVER, rank, response);
        Add(absl::StrCat("/logs/standby-", rank, ".address.pid"), v1::ROLE_STANDBY, rank, response);
      }
      return response;
    }
    v1::GetProgressResponse::MemberStatus* member = Add("/pid", script_.role, 1, response);
    if (member == nullptr) return response;
    member->mutable_member()->set_incarnation(1);
    member->set_state(script_.finished ? "left" : "joined");
    if (script_.failed) {
      progress.set_state(v1::JOB_STATE_FAILED);
      *progress.mutable_failure()->mutable_member() = member->member();
      progress.mutable_failure()->set_process(member->process());
    }
    if (script_.finished) progress.set_state(v1::JOB_STATE_FINISHED);
    return response;
  }
  absl::StatusOr<v1::SaveCheckpointResponse> SaveCheckpoint(uint64_t id, absl::Duration) override {
    if (script_.saves.empty()) return absl::PermissionDeniedError("no token");
    if (asked_) asked_();
    const v1::SaveCheckpointResponse save = script_.saves.front();
    EXPECT_TRUE(id == 0 || id == save.id());
    if (script_.saves.size() > 1) script_.saves.erase(script_.saves.begin());
    return save;
  }
  absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration) override {
    ends_->push_back(member.ShortDebugString() + ": " + how);
    return absl::OkStatus();
  }

 private:
  // Adds the process whose id the file has; null if there is none.
  v1::GetProgressResponse::MemberStatus* Add(const std::string& file, v1::Role role, int rank,
                                             v1::GetProgressResponse& response) const {
    std::string pid;
    if (!std::getline(std::ifstream(run_dir_ + file), pid)) return nullptr;
    v1::GetProgressResponse::MemberStatus* member = response.add_members();
    member->mutable_member()->set_role(role);
    member->mutable_member()->set_rank(rank);
    member->set_process(std::stoull(pid));
    member->set_in_step(role == v1::ROLE_STANDBY);
    return member;
  }

  Script script_;
  const std::function<void()> asked_;
  const std::string run_dir_;
  std::vector<std::string>* const ends_;
};

class JobLaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    run_dir_ = ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(run_dir_);
    std::filesystem::create_directories(run_dir_ + "/logs");
  }

  std::string Script(const std::string& name, const std::string& text) {
    const std::string path = run_dir_ + "/" + name;
    std::ofstream(path) << kHead << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  // Runs the scripts as a job of two servers and two workers.
  LaunchResult Run() {
    plan_.run_dir = run_dir_;
    plan_.server_binary = Script("server", server_);
    plan_.worker_binary = Script("worker", worker_);
    ProgressDisplay display({.epochs = 3, .metrics = run_dir_ + "/metrics.jsonl"}, &shown_, Clock::Real());
    LogMerger logs([&](absl::string_view line) { log_lines_.emplace_back(line); }, false);
    auto connect = [&](const std::string& address) {
      connected_ = address;
      return std::make_unique<FakeProgress>(progress_, asked_, run_dir_, &ends_);
    };
    const absl::Time start = absl::Now();
    const LaunchResult result = JobLaunch(plan_, &logs, &display, connect).Run();
    seconds_ = absl::ToDoubleSeconds(absl::Now() - start);
    return result;
  }

  LaunchResult RunWell() {
    const LaunchResult result = Run();
    EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
    return result;
  }

  // `process` and `how`: regular expressions of the process that failed and of its end.
  LaunchResult RunToFailure(int exit_status, const std::string& process, const std::string& how) {
    const LaunchResult result = Run();
    EXPECT_EQ(result.exit_status, exit_status);
    EXPECT_THAT(result.error, MatchesRegex(process + " \\(process [0-9]+\\) " + how));
    return result;
  }

  // Matches text that announces it.
  static auto RestartOf(const std::string& process) {
    return ContainsRegex(process + " \\(process [0-9]+\\) " + kKilled +
                         "; restarting it in 200ms \\(restart 1 of 3\\)");
  }

  // Creates a file for which scripts wait.
  void Touch(const std::string& name) { std::ofstream(run_dir_ + "/" + name) << "x"; }

  // Does so once a poll of the coordinator finds it true.
  void TouchWhen(const std::string& name, std::function<bool()> condition) {
    asked_ = [=, this] {
      if (condition()) Touch(name);
    };
  }

  bool Shown(const std::string& text) { return absl::StrContains(shown_.str(), text); }

  std::string Log(const std::string& name) { return ReadFile(run_dir_ + "/logs/" + name + ".log").value_or(""); }

  bool WorkersAreReady() {
    return absl::StrContains(Log("worker-0"), "ready") && absl::StrContains(Log("worker-1"), "ready");
  }

  LaunchPlan plan_ = {.job_file = "job.textproto", .servers = 2, .workers = 2, .gpus = "2", .threads = 3};
  std::string run_dir_;
  std::string server_ = kGoodServer;
  std::string worker_ = "exit 0\n";
  FakeProgress::Script progress_;
  std::function<void()> asked_;
  std::string connected_;
  std::vector<std::string> ends_;
  std::ostringstream shown_;
  std::vector<std::string> log_lines_;
  double seconds_ = 0;
};

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
  EXPECT_EQ(Log("worker-0"), "worker 0: --rank 0" + common + " --run_dir " + run_dir_ + "\n");
  EXPECT_EQ(Log("worker-1"), "worker 1: --rank 1" + common + "\n");
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

v1::SaveCheckpointResponse Saving(uint64_t id) {
  v1::SaveCheckpointResponse save;
  save.set_id(id);
  save.set_pending(true);
  save.set_waiting_for("worker 1");
  return save;
}

v1::SaveCheckpointResponse Saved(uint64_t id, uint64_t step, uint32_t epoch) {
  v1::SaveCheckpointResponse save;
  save.set_id(id);
  save.set_step(step);
  save.set_epoch(epoch);
  return save;
}

TEST_F(JobLaunchTest, TakesACheckpointBeforeItStopsTheWorkers) {
  plan_.durability.set_mode(v1::Durability::CHECKPOINT);
  progress_.saves = {Saving(7), Saving(7), Saved(7, 1876, 4)};
  worker_ = "trap 'echo saved; exit 130' TERM; echo ready; stay\n";
  int asked = 0, saved_before = 0;
  asked_ = [&] {
    if (Shown("stopping: ") && ++asked == 3) saved_before = absl::StrContains(Log("worker-0"), "saved");
    if (WorkersAreReady() && !Shown("stopping: ")) raise(SIGTERM);
  };
  EXPECT_EQ(Run().exit_status, 130);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(saved_before, 0) << "the workers still had to finish their leases";
  EXPECT_THAT(shown_.str(), HasSubstr("stopping: the job takes a checkpoint, then the workers save; press Ctrl-C "
                                      "again to stop immediately\n"));
  EXPECT_THAT(shown_.str(), HasSubstr("checkpoint 7 saved at step 1876, epoch 4\n"));
  EXPECT_THAT(Log("worker-0"), HasSubstr("saved"));
}

TEST_F(JobLaunchTest, WaitsForTheLastCheckpointOfAFinishedJob) {
  plan_.durability.set_mode(v1::Durability::WAL);
  progress_.saves = {Saving(2), Saved(2, 60, 3)};
  RunWell();
  EXPECT_THAT(shown_.str(), HasSubstr("checkpoint 2 saved at step 60, epoch 3\n"));
}

TEST_F(JobLaunchTest, SaysWhyThereIsNoCheckpoint) {
  plan_.durability.set_mode(v1::Durability::WAL);
  v1::SaveCheckpointResponse failed = Saved(2, 0, 0);
  failed.set_failure("server 1: no space left");
  progress_.saves = {Saving(2), failed};
  RunWell();
  EXPECT_THAT(shown_.str(), HasSubstr("no checkpoint was saved: server 1: no space left\n"));
}

TEST_F(JobLaunchTest, SaysThatTheCoordinatorRefuses) {
  plan_.durability.set_mode(v1::Durability::WAL);
  RunWell();
  EXPECT_THAT(shown_.str(), HasSubstr("no checkpoint was saved: no token\n"));
}

TEST_F(JobLaunchTest, ASecondInterruptDoesNotWaitForTheCheckpoint) {
  plan_.durability.set_mode(v1::Durability::WAL);
  progress_.saves = {Saving(2)};
  worker_ = kWaitForTerm;
  asked_ = [&] {
    if (WorkersAreReady()) raise(SIGINT);
  };
  EXPECT_EQ(Run().exit_status, 130);
  EXPECT_LT(seconds_, 10);
  EXPECT_THAT(shown_.str(), Not(HasSubstr("checkpoint was saved")));
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
  EXPECT_THAT(Log("worker-0"), HasSubstr(" --run_dir " + run_dir_ + "\n"));
  EXPECT_THAT(Log("worker-0"), HasSubstr(" --run_dir " + run_dir_ + " --continue_run\n"));
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
