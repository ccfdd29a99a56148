// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/job_launch.h"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// A server that runs until SIGTERM.
constexpr char kGoodServer[] = R"(
for word; do
  [ "$before" = --address_file ] && file=$word
  [ "$before" = --rank ] && rank=$word
  before=$word
done
echo "server $rank: $*"
trap 'echo drained; exit 0' TERM
[ -n "$file" ] && echo 127.0.0.1:4242 > "$file.new" && mv "$file.new" "$file"
while :; do tail -f /dev/null & wait; done
)";

// The first lines of a worker: sets $rank. Each test appends the rest.
constexpr char kWorkerHead[] = R"(
for word; do
  [ "$before" = --rank ] && rank=$word
  before=$word
done
echo "worker $rank: $*"
)";

constexpr char kWaitForTerm[] =
    "trap 'echo saved; exit 130' TERM; echo ready; while :; do tail -f /dev/null & wait; done\n";

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
    // The members are the servers, read from the *.pid files next to their addresses; they are in step.
    bool pairs = false;
  };
  FakeProgress(Script script, std::function<void()> asked, const std::string& run_dir, std::vector<std::string>* ends)
      : script_(script), asked_(std::move(asked)), run_dir_(run_dir), pid_file_(run_dir + "/pid"), ends_(ends) {}
  absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration) override {
    if (asked_) asked_();
    const bool dead = std::filesystem::exists(pid_file_);
    if (dead && script_.failures-- > 0) return absl::UnavailableError("away");
    v1::GetProgressResponse response;
    response.mutable_progress()->set_state(v1::JOB_STATE_RUNNING);
    response.mutable_progress()->set_epochs(5);
    response.mutable_progress()->set_step(7);
    if (script_.pairs) {
      for (int rank : {0, 1}) {
        AddServer("server", rank, v1::ROLE_SERVER, response);
        AddServer("standby", rank, v1::ROLE_STANDBY, response);
      }
      return response;
    }
    std::string pid;
    if (!std::getline(std::ifstream(pid_file_), pid)) return response;
    v1::GetProgressResponse::MemberStatus* member = response.add_members();
    member->mutable_member()->set_role(script_.role);
    member->mutable_member()->set_rank(1);
    member->mutable_member()->set_incarnation(1);
    member->set_process(std::stoull(pid));
    member->set_state(script_.finished ? "left" : "joined");
    if (script_.failed) {
      response.mutable_progress()->set_state(v1::JOB_STATE_FAILED);
      *response.mutable_progress()->mutable_failure()->mutable_member() = member->member();
      response.mutable_progress()->mutable_failure()->set_process(member->process());
    }
    if (script_.finished) response.mutable_progress()->set_state(v1::JOB_STATE_FINISHED);
    return response;
  }
  absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration) override {
    ends_->push_back(member.ShortDebugString() + ": " + how);
    return absl::OkStatus();
  }

 private:
  void AddServer(const std::string& name, int rank, v1::Role role, v1::GetProgressResponse& response) const {
    std::string pid;
    if (!std::getline(std::ifstream(absl::StrCat(run_dir_, "/logs/", name, "-", rank, ".address.pid")), pid)) return;
    v1::GetProgressResponse::MemberStatus* member = response.add_members();
    member->mutable_member()->set_role(role);
    member->mutable_member()->set_rank(rank);
    member->set_process(std::stoull(pid));
    member->set_in_step(role == v1::ROLE_STANDBY);
  }

  Script script_;
  const std::function<void()> asked_;
  const std::string run_dir_;
  const std::string pid_file_;
  std::vector<std::string>* const ends_;
};

class JobLaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    run_dir_ = ::testing::TempDir() + "/" + test->name();
    std::filesystem::remove_all(run_dir_);
    std::filesystem::create_directories(run_dir_ + "/logs");
    server_ = kGoodServer;
    worker_ = std::string(kWorkerHead) + "exit 0\n";
  }

  std::string Script(const std::string& name, const std::string& text) {
    const std::string path = run_dir_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  // Runs the scripts as a job of two servers and two workers.
  LaunchResult Run() {
    LaunchPlan plan;
    plan.job_file = "job.textproto";
    plan.servers = 2;
    plan.workers = 2;
    plan.threads = 3;
    plan.gpus = "2";
    plan.run_dir = run_dir_;
    plan.server_binary = Script("server", server_);
    plan.worker_binary = Script("worker", worker_);
    plan.durability = durability_;
    plan.chaos = chaos_;
    plan.max_restarts = max_restarts_;
    ProgressDisplay display({}, &shown_, Clock::Real());
    LogMerger logs([&](absl::string_view line) { log_lines_.emplace_back(line); }, false);
    auto connect = [&](const std::string& address) {
      connected_ = address;
      return std::make_unique<FakeProgress>(progress_, asked_, run_dir_, &ends_);
    };
    const absl::Time start = absl::Now();
    const LaunchResult result = JobLaunch(plan, &logs, &display, connect).Run();
    seconds_ = absl::ToDoubleSeconds(absl::Now() - start);
    return result;
  }

  std::string Log(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(run_dir_ + "/logs/" + name + ".log").rdbuf();
    return text.str();
  }

  bool WorkersAreReady() {
    return Log("worker-0").find("ready") != std::string::npos && Log("worker-1").find("ready") != std::string::npos;
  }

  std::string run_dir_;
  std::string server_;
  std::string worker_;
  FakeProgress::Script progress_;
  std::function<void()> asked_;
  v1::Durability durability_;
  std::optional<ChaosPlan> chaos_;
  int max_restarts_ = 3;
  std::string connected_;
  std::vector<std::string> ends_;
  std::ostringstream shown_;
  std::vector<std::string> log_lines_;
  double seconds_ = 0;
};

TEST_F(JobLaunchTest, EndsWellWhenAllWorkersDo) {
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
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
  worker_ = std::string(kWorkerHead) + "while [ ! -e \"${0%/*}/asked\" ]; do :; done\n";
  asked_ = [&] { std::ofstream(run_dir_ + "/asked") << "x"; };
  EXPECT_EQ(Run().exit_status, 0);
  EXPECT_THAT(shown_.str(), HasSubstr("epoch 1/5  step 7"));
}

TEST_F(JobLaunchTest, NamesAWorkerThatFailsAndStopsTheOthers) {
  worker_ = std::string(kWorkerHead) +
            "[ $rank = 1 ] && echo 'step 3' && echo 'error: loss is NaN at step 3' && exit 1\n" + kWaitForTerm;
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.error, MatchesRegex("worker 1 \\(process [0-9]+\\) ended with status 1: loss is NaN at step 3"));
  EXPECT_THAT(shown_.str(), HasSubstr("  step 3\n  error: loss is NaN at step 3\n"));
  EXPECT_LT(seconds_, 5);
}

TEST_F(JobLaunchTest, NamesAServerThatIsKilledWhileItStarts) {
  server_ = "echo 'about to die'; kill -KILL $$";
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.error, MatchesRegex("server 0 \\(process [0-9]+\\) was killed by signal 9 \\(SIGKILL\\)"));
  EXPECT_THAT(shown_.str(), HasSubstr("  about to die\n"));
}

TEST_F(JobLaunchTest, NamesAServerThatLeavesTooEarly) {
  server_ = std::string("rank=$2; [ $rank = 1 ] && exit 0\n") + kGoodServer;
  worker_ = std::string(kWorkerHead) + kWaitForTerm;
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.error, MatchesRegex("server 1 \\(process [0-9]+\\) ended with status 0 before the job was done"));
}

TEST_F(JobLaunchTest, ExitsWithTwoWhenAWorkerFoundBadInput) {
  worker_ = std::string(kWorkerHead) + "echo 'error: images.gz: want 47040016 bytes, got 12'; exit 2\n";
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.error, HasSubstr("ended with status 2: images.gz: want 47040016 bytes, got 12"));
}

TEST_F(JobLaunchTest, ExitsWithSeventyFiveWhenOthersWereMissing) {
  worker_ = std::string(kWorkerHead) + "echo 'error: the job has not gathered within 2s: server 7 to join'; exit 75\n";
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 75);
  EXPECT_THAT(result.error, HasSubstr("ended with status 75: the job has not gathered within 2s: server 7 to join"));
}

TEST_F(JobLaunchTest, BlamesTheFirstCauseThoughAnotherEndsBefore) {
  // Worker 1 dies only after worker 0, told of it by the coordinator, was reaped. No text says so.
  progress_.failed = true;
  worker_ = std::string(kWorkerHead) + R"(
folder=${0%/*}
if [ $rank = 0 ]; then
  while [ ! -e $folder/pid ]; do :; done
  echo 'error: the job failed'
  echo $$ > $folder/new && mv $folder/new $folder/first
  exit 1
fi
echo $$ > $folder/pid.new && mv $folder/pid.new $folder/pid
while [ ! -e $folder/first ]; do :; done
while kill -0 $(cat $folder/first) 2> /dev/null; do :; done
echo 'error: bad loss'
exit 1
)";
  const LaunchResult result = Run();
  EXPECT_THAT(result.error, MatchesRegex("worker 1 \\(process [0-9]+\\) ended with status 1: bad loss"));
}

TEST_F(JobLaunchTest, AnnouncesNoRestartOnceTheJobHasFailed) {
  // Worker 1, which the coordinator blames, is killed while the launch waits for it.
  progress_.failed = true;
  worker_ = std::string(kWorkerHead) + R"(
folder=${0%/*}
if [ $rank = 0 ]; then
  while [ ! -e $folder/pid ]; do :; done
  echo $$ > $folder/new && mv $folder/new $folder/first
  exit 1
fi
echo $$ > $folder/pid.new && mv $folder/pid.new $folder/pid
while [ ! -e $folder/first ]; do :; done
while kill -0 $(cat $folder/first) 2> /dev/null; do :; done
kill -KILL $$
)";
  EXPECT_THAT(Run().error, MatchesRegex("worker 0 \\(process [0-9]+\\) ended with status 1"));
  EXPECT_THAT(shown_.str(), Not(HasSubstr("restarting it")));
}

// Worker 1 dies once.
constexpr char kDieOnce[] = R"(
folder=${0%/*}
if [ $rank = 1 ] && [ ! -e $folder/pid ]; then
  echo 'first life'
  echo $$ > $folder/pid.new && mv $folder/pid.new $folder/pid
  kill -KILL $$
fi
[ $rank = 1 ] && echo 'second life' && touch $folder/lived
while [ ! -e $folder/lived ]; do :; done
exit 0
)";

TEST_F(JobLaunchTest, StartsAWorkerAgainThatDiedAndTellsTheCoordinator) {
  worker_ = std::string(kWorkerHead) + kDieOnce;
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_EQ(result.restarts, 1);
  EXPECT_THAT(shown_.str(), ContainsRegex("worker 1 \\(process [0-9]+\\) was killed by signal 9 \\(SIGKILL\\); "
                                          "restarting it in 200ms \\(restart 1 of 3\\)"));
  EXPECT_THAT(Log("worker-1"), ContainsRegex("first life\n(.|\n)*second life\n")) << "one log of both";
  EXPECT_THAT(ends_, ElementsAre("role: ROLE_WORKER rank: 1 incarnation: 1: was killed by signal 9 (SIGKILL)"));
}

TEST_F(JobLaunchTest, StartsAWorkerAgainOnceTheCoordinatorKnowsThatTheOneBeforeIsGone) {
  worker_ = std::string(kWorkerHead) + kDieOnce;
  progress_.failures = 12;
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_THAT(ends_, ElementsAre("role: ROLE_WORKER rank: 1 incarnation: 1: was killed by signal 9 (SIGKILL)"));
  EXPECT_GE(seconds_, 1) << "asked again every 0.1 s";
}

TEST_F(JobLaunchTest, AWorkerThatIsKilledAfterItsPartIsDoneIsNotStartedAgain) {
  worker_ = std::string(kWorkerHead) + kDieOnce;
  worker_.replace(worker_.find("while [ ! -e $folder/lived"), 26, "while [ ! -e $folder/pid");
  progress_.finished = true;
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_EQ(result.restarts, 0);
  EXPECT_THAT(Log("worker-1"), Not(HasSubstr("second life")));
}

TEST_F(JobLaunchTest, StartsAWorkerAgainThatLostItsDevice) {
  worker_ = std::string(kWorkerHead) + kDieOnce;
  worker_.replace(worker_.find("kill -KILL $$"), 13, "echo 'error: cuda device: gone'; exit 3");
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_EQ(result.restarts, 1);
}

TEST_F(JobLaunchTest, GivesAWorker0UpThatDiesAgainAndAgain) {
  worker_ = std::string(kWorkerHead) + "[ $rank = 0 ] && kill -KILL $$\n" + kWaitForTerm;
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.error, MatchesRegex("worker 0 \\(process [0-9]+\\) was killed by signal 9 \\(SIGKILL\\)"));
  EXPECT_EQ(result.restarts, 3);
  EXPECT_GE(seconds_, 1.4) << "0.2 s, 0.4 s, 0.8 s";
  EXPECT_THAT(shown_.str(), HasSubstr("restarting it in 800ms (restart 3 of 3)"));
}

TEST_F(JobLaunchTest, WithoutAnotherWorkerTheOthersGoOn) {
  worker_ = std::string(kWorkerHead) + R"(
[ $rank = 1 ] && kill -KILL $$
while ! grep -q 'worker 1' "${0%/*}/gone" 2> /dev/null; do :; done
exit 0
)";
  asked_ = [&] {
    if (shown_.str().find("the job continues without it") != std::string::npos)
      std::ofstream(run_dir_ + "/gone") << "worker 1";
  };
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_EQ(result.restarts, 3);
}

// Server 1 dies once.
constexpr char kMortalServer[] = R"(
[ $2 = 1 ] && [ -e "${0%/*}/doomed" ] && rm "${0%/*}/doomed" && mortal=1
for word; do
  [ "$before" = --address_file ] && file=$word
  before=$word
done
echo "flags: $*"
trap 'echo drained; exit 0' TERM
echo 127.0.0.1:424$2 > "$file.new" && mv "$file.new" "$file"
[ -n "$mortal" ] && kill -KILL $$
[ $2 = 1 ] && touch "${0%/*}/returned"
while :; do tail -f /dev/null & wait; done
)";

TEST_F(JobLaunchTest, StartsAServerAgainInItsPlaceWhereTheJobOutlivesIt) {
  server_ = kMortalServer;
  std::ofstream(run_dir_ + "/doomed") << "x";
  worker_ = std::string(kWorkerHead) + "while [ ! -e \"${0%/*}/returned\" ]; do :; done\nexit 0\n";
  durability_.set_mode(v1::Durability::WAL);
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_EQ(result.restarts, 1);
  EXPECT_THAT(Log("server-1"), HasSubstr("--listen 127.0.0.1:0 "));
  EXPECT_THAT(Log("server-1"), HasSubstr("--listen 127.0.0.1:4241 ")) << "the address that the others know";
  EXPECT_THAT(Log("server-1"), HasSubstr("--state_dir " + run_dir_ + "/state/shard-1"));
}

class ReplicatedJobLaunchTest : public JobLaunchTest {
 protected:
  ReplicatedJobLaunchTest() { durability_.set_mode(v1::Durability::STANDBY); }
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
for word; do
  [ "$before" = --address_file ] && file=$word
  [ "$before" = --rank ] && rank=$word
  before=$word
done
folder=${0%/*}
echo "flags: $*"
trap 'echo drained; exit 0' TERM
case $file in *standby-1.address) doomed=1; port=4243 ;; *) port=424$rank ;; esac
echo 127.0.0.1:$port > "$file.new" && mv "$file.new" "$file"
echo $$ > "$file.pid.new" && mv "$file.pid.new" "$file.pid"
if [ -n "$doomed" ] && [ ! -e $folder/pid ]; then
  echo $$ > $folder/pid.new && mv $folder/pid.new $folder/pid
  kill -KILL $$
fi
[ -n "$doomed" ] && touch $folder/returned
while :; do tail -f /dev/null & wait; done
)";

TEST_F(ReplicatedJobLaunchTest, StartsAStandbyAgainInItsPlaceAndTellsTheCoordinatorOfItsEnd) {
  server_ = kMortalStandby;
  // By then it had become the server.
  progress_.role = v1::ROLE_SERVER;
  worker_ = std::string(kWorkerHead) + R"(
while ! grep -q x "${0%/*}/heard" 2> /dev/null || [ ! -e "${0%/*}/returned" ]; do :; done
exit 0
)";
  asked_ = [&] {
    if (!ends_.empty()) std::ofstream(run_dir_ + "/heard") << "x";
  };
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_EQ(result.restarts, 1);
  EXPECT_THAT(shown_.str(), ContainsRegex("standby 1 \\(process [0-9]+\\) was killed by signal 9 \\(SIGKILL\\); "
                                          "restarting it in 200ms \\(restart 1 of 3\\)"));
  EXPECT_THAT(Log("standby-1"), HasSubstr("--rank 1 --listen 127.0.0.1:4243 ")) << "the address that it had";
  EXPECT_THAT(Log("standby-1"), HasSubstr("--with_standby"));
  EXPECT_THAT(ends_, ElementsAre("role: ROLE_SERVER rank: 1 incarnation: 1: was killed by signal 9 (SIGKILL)"));
}

TEST_F(ReplicatedJobLaunchTest, WithoutRestartsTheOtherOneOfAPairGoesOn) {
  server_ = kMortalStandby;
  max_restarts_ = 0;
  worker_ = std::string(kWorkerHead) + "while ! grep -q x \"${0%/*}/gone\" 2> /dev/null; do :; done\nexit 0\n";
  asked_ = [&] {
    if (shown_.str().find("; the job continues without it") != std::string::npos)
      std::ofstream(run_dir_ + "/gone") << "x";
  };
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_EQ(result.restarts, 0);
}

TEST_F(ReplicatedJobLaunchTest, TheLossOfBothOfAPairEndsTheJob) {
  server_ = kMortalStandby;
  server_.replace(server_.find("*standby-1.address"), 18, "*1.address");
  server_.replace(server_.find("[ ! -e $folder/pid ]"), 20, ": both");
  max_restarts_ = 0;
  worker_ = std::string(kWorkerHead) + kWaitForTerm;
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.error,
              MatchesRegex("(server|standby) 1 \\(process [0-9]+\\) was killed by signal 9 \\(SIGKILL\\)"));
}

TEST_F(ReplicatedJobLaunchTest, ChaosKillsServersAndStandbysThatAreInStep) {
  server_ = kMortalStandby;
  server_.replace(server_.find("kill -KILL $$"), 13, "true");
  worker_ = std::string(kWorkerHead) + "while [ ! -e \"${0%/*}/enough\" ]; do :; done\nexit 0\n";
  asked_ = [&] {
    const std::string shown = shown_.str();
    if (shown.find("killing server") == shown.npos || shown.find("killing standby") == shown.npos) return;
    std::ofstream(run_dir_ + "/enough") << "x";
  };
  progress_.pairs = true;
  chaos_ = {.kill_server = absl::Milliseconds(100)};
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_THAT(shown_.str(), ContainsRegex("chaos: killing (server|standby) [01] \\(process [0-9]+\\)"));
}

TEST_F(ReplicatedJobLaunchTest, ChaosLeavesAPairAloneWhoseStandbyHasNotAll) {
  worker_ = std::string(kWorkerHead) + "while [ ! -e \"${0%/*}/enough\" ]; do :; done\nexit 0\n";
  asked_ = [&, times = 0]() mutable {
    if (++times == 4) std::ofstream(run_dir_ + "/enough") << "x";
  };
  chaos_ = {.kill_server = absl::Milliseconds(100)};
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_THAT(shown_.str(), Not(HasSubstr("chaos: killing")));
}

TEST_F(JobLaunchTest, AServersDeathEndsAJobThatDoesNotOutliveIt) {
  server_ = kMortalServer;
  std::ofstream(run_dir_ + "/doomed") << "x";
  worker_ = std::string(kWorkerHead) + kWaitForTerm;
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.error, MatchesRegex("server 1 \\(process [0-9]+\\) was killed by signal 9 \\(SIGKILL\\)"));
  EXPECT_EQ(result.restarts, 0);
}

TEST_F(JobLaunchTest, ChaosKillsAndThatDoesNotCount) {
  worker_ = std::string(kWorkerHead) + R"(
echo life >> "${0%/*}/lives"
while [ $(wc -l < "${0%/*}/lives") -lt 7 ]; do :; done
exit 0
)";
  chaos_ = {.kill_worker = absl::Milliseconds(300)};
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 0) << result.error << shown_.str();
  EXPECT_GE(result.restarts, 5) << "more than 3 for one of them";
  EXPECT_THAT(shown_.str(), ContainsRegex("chaos: killing worker [01] \\(process [0-9]+\\)"));
}

TEST_F(JobLaunchTest, LetsWorkersSaveWhenInterrupted) {
  worker_ = std::string(kWorkerHead) + kWaitForTerm;
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
  worker_ = "trap '' TERM; echo ready; while :; do tail -f /dev/null & wait; done";
  asked_ = [&] {
    if (!WorkersAreReady()) return;
    raise(SIGINT);
    raise(SIGTERM);
  };
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 130);
  EXPECT_LT(seconds_, 4);
}

TEST_F(JobLaunchTest, KillsProcessesThatDoNotHeed) {
  worker_ = std::string(kWorkerHead) + R"(
if [ $rank = 0 ]; then
  while [ ! -e "${0%/*}/deaf" ]; do :; done
  exit 1
fi
trap '' TERM
touch "${0%/*}/deaf"
while :; do tail -f /dev/null & wait; done
)";
  const LaunchResult result = Run();
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.error, HasSubstr("worker 0"));
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
