// SPDX-License-Identifier: Apache-2.0
// Runs the program ballast with scripts in place of the server and the worker.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/launch/testing/scripted_command.h"
#include "common/program/process.h"
#include "common/run/summary.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Takes the accuracy from the learning rate of the resolved job: 0.2 gives 0.82. A rate of 0.5 fails.
constexpr char kWorker[] = R"(
rate=$(sed -n 's/ *learning_rate: //p' "$job")
[ "$rate" = 0.5 ] && { echo "error: the loss is nan at step 1"; exit 1; }
[ "$rank" = 0 ] || exit 0
sed "s/ACCURACY/0.8${rate#0.}/" ready.json > "$run_dir/summary.json"
)";

class SweepCommandTest : public ScriptedCommandTest {
 protected:
  SweepCommandTest() : ScriptedCommandTest("sweep") {}

  void SetUp() override {
    ScriptedCommandTest::SetUp();
    std::string ready = SummaryToJson({.job = "small", .mode = "sync", .epochs = 1, .steps = 4, .test_accuracy = 0.25});
    Write("ready.json", ready.replace(ready.find("0.25"), 4, "ACCURACY") + "\n");
    Program("worker", kWorker);
  }
};

constexpr char kRates[] = "--set optimizer.sgd.learning_rate=0.1,0.3,0.2";

TEST_F(SweepCommandTest, RunsEachValueAndPutsTheBestFirst) {
  ASSERT_EQ(Run(absl::StrCat("job.textproto ", kRates, " --parallel 2 --run-dir all --workers 2")), 0) << Read("err");
  EXPECT_THAT(Read("out"), ContainsRegex("^run  .*\n"
                                         "learning_rate=0.3  finished .*accuracy 0.8300 .* all/2-learning_rate=0.3\n"
                                         "learning_rate=0.2  finished .*accuracy 0.8200 .* all/3-learning_rate=0.2\n"
                                         "learning_rate=0.1  finished .*accuracy 0.8100 .* all/1-learning_rate=0.1\n"
                                         "report: all/report.html\n$"));
  EXPECT_THAT(Read("err"), AllOf(HasSubstr("sweep of job small: 3 runs, 2 at a time; directory all\n"),
                                 HasSubstr("run 3 of 3 done  ")));
  EXPECT_THAT(Read("all/report.html"), HasSubstr("<h1>Sweep of small</h1>"));
  EXPECT_THAT(Read("all/report.html"), HasSubstr("<th>optimizer.sgd.learning_rate</th>"));
  EXPECT_THAT(Read("all/logs/1-learning_rate=0.1.log"), HasSubstr("done in "));
  EXPECT_THAT(Read("all/2-learning_rate=0.3/job.textproto"), HasSubstr("learning_rate: 0.3"));
}

TEST_F(SweepCommandTest, PrintsOneJsonObject) {
  ASSERT_EQ(Run(absl::StrCat("job.textproto ", kRates, " --set seed=7 --run_dir all --json")), 0) << Read("err");
  const auto json = nlohmann::json::parse(Read("out"));
  EXPECT_EQ(json["job"], "small");
  EXPECT_EQ(json["report"], "all/report.html");
  ASSERT_EQ(json["runs"].size(), 3);
  EXPECT_EQ(json["runs"][0]["set"]["optimizer.sgd.learning_rate"], "0.3");
  EXPECT_EQ(json["runs"][0]["set"]["seed"], "7");
  EXPECT_EQ(json["runs"][0]["test_accuracy"], 0.83);
  EXPECT_EQ(nlohmann::json::parse(Read("all/sweep.json")), json);
  EXPECT_THAT(Read("all/2-learning_rate=0.3/job.textproto"), HasSubstr("seed: 7"));
}

TEST_F(SweepCommandTest, AFailedRunIsARowWithItsError) {
  EXPECT_EQ(Run("job.textproto --set optimizer.sgd.learning_rate=0.5,0.1 --max-restarts 0 --run-dir all --json"), 1);
  const auto json = nlohmann::json::parse(Read("out"));
  ASSERT_EQ(json["runs"].size(), 2);
  EXPECT_EQ(json["runs"][0]["state"], "finished");
  EXPECT_EQ(json["runs"][1]["state"], "failed");
  EXPECT_THAT(std::string(json["runs"][1]["error"]), HasSubstr("the loss is nan at step 1"));
  EXPECT_THAT(std::string(json["error"]), HasSubstr("1 of 2 runs failed; the first, learning_rate=0.5: "));
  EXPECT_EQ(json["exit_code"], 1);
}

TEST_F(SweepCommandTest, ChecksAllRunsBeforeItStartsTheFirst) {
  EXPECT_EQ(Run("job.textproto --set training.batch_size=4,0 --run-dir all"), 2);
  EXPECT_THAT(Read("err"), AllOf(HasSubstr("error: run batch_size=0: "), HasSubstr("batch_size: got 0")));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/all"));
}

TEST_F(SweepCommandTest, RefusesWrongFlags) {
  std::filesystem::create_directories(folder_ + "/full/x");
  const std::pair<const char*, const char*> cases[] = {
      {"", "launch: got 0 job files, want exactly one"},
      {"job.textproto --set seed", "flag --set: got \"seed\", want FIELD=VALUE"},
      {"job.textproto --set", "flag --set wants a value"},
      {"job.textproto --parallel 0", "flag --parallel: got \"0\", want a number from 1 to 64"},
      {"job.textproto --paralel 2", "unknown flag --paralel"},
      {"job.textproto --trace t.json", "flag --trace: ballast sweep does not take it"},
      {"job.textproto --resume auto", "flag --resume: ballast sweep does not take it"},
      {"job.textproto --set sed=1,2", "sed"},
      {"job.textproto --run-dir full", "full: is not empty, want a new or an empty one"},
  };
  for (const auto& [flags, message] : cases) {
    EXPECT_EQ(Run(flags), 2) << flags;
    EXPECT_THAT(Read("err"), AllOf(HasSubstr("error: "), HasSubstr(message))) << flags;
  }
}

TEST_F(SweepCommandTest, SharesTheCoresAmongTheRuns) {
  Program("worker", absl::StrCat("echo $threads > $PIPE\n", kWorker));
  ASSERT_EQ(Run(absl::StrCat("job.textproto ", kRates, " --parallel 3 --run-dir shared")), 0) << Read("err");
  const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_EQ(NextLine(), absl::StrCat(std::max(1, cores / 3)));
  NextLine();
  NextLine();
  ASSERT_EQ(Run("job.textproto --threads 7 --run-dir given"), 0) << Read("err");
  EXPECT_EQ(NextLine(), "7");
}

TEST_F(SweepCommandTest, LeavesTheCoresOfHostsToEachRun) {
  Program("worker", absl::StrCat("echo $threads > $PIPE\n", kWorker));
  ASSERT_EQ(Run("job.textproto --hosts localhost:2 --run-dir hosts"), 0) << Read("err");
  EXPECT_EQ(NextLine(), absl::StrCat(std::max<int64_t>(1, sysconf(_SC_NPROCESSORS_ONLN) / 2)));
}

TEST_F(SweepCommandTest, EndsAllRunsWhenInterrupted) {
  Program("worker", R"(
trap 'sed "s/ACCURACY/0.5/; s/\"interrupted\":false/\"interrupted\":true/" ready.json > "$run_dir/summary.json"; exit 130' TERM
echo $$ > $PIPE
while :; do tail -f /dev/null & wait; done
)");
  Process process = Start(absl::StrCat("job.textproto ", kRates, " --parallel 2 --run-dir all --json"));
  std::vector<int> handles;
  for (int worker = 0; worker < 2; ++worker) {
    pid_t pid = 0;
    ASSERT_TRUE(absl::SimpleAtoi(NextLine(), &pid));
    handles.push_back(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  }
  process.Signal(SIGINT);
  EXPECT_EQ(Wait(process).number, 130);
  for (int handle : handles) ExpectEnd(handle);
  const auto json = nlohmann::json::parse(Read("out"));
  EXPECT_EQ(json["runs"][0]["state"], "interrupted");
  EXPECT_EQ(json["runs"][1]["state"], "interrupted");
  EXPECT_EQ(json["runs"][2]["state"], "not started");
  EXPECT_EQ(json["reason"], "CANCELLED");
}

TEST_F(SweepCommandTest, LeavesNoProcessWhenItIsKilled) {
  Program("worker", "trap '' TERM INT HUP; echo $$ > $PIPE; exec tail -f /dev/null > /dev/null");
  Process process = Start("job.textproto --run-dir all");
  pid_t pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi(NextLine(), &pid));
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  kill(process.pid(), SIGKILL);
  ExpectEnd(handle);
}

}  // namespace
}  // namespace ballast
