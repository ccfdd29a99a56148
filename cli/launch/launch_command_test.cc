// SPDX-License-Identifier: Apache-2.0
// Runs the program ballast with scripts in place of the server and the worker.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/launch/testing/scripted_command.h"
#include "common/program/process.h"
#include "common/run/launch_record.h"
#include "common/run/summary.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class LaunchCommandTest : public ScriptedCommandTest {
 protected:
  LaunchCommandTest() : ScriptedCommandTest("launch") {}
};

TEST_F(LaunchCommandTest, PrintsOnlyTheSummaryToTheOutputWithJson) {
  Summary summary = {.job = "small", .mode = "async", .servers = 2, .workers = 2, .steps = 15, .seconds = 1.5};
  summary.samples_per_second = 100;
  summary.run_dir = "run";
  Write("ready.json", SummaryToJson(summary) + "\n");
  Program("worker", "[ $rank = 0 ] && cp ready.json \"$run_dir/summary.json\"; exit 0");
  ASSERT_EQ(Run("job.textproto --servers 2 --workers=2 --mode async --run_dir run --json"), 0) << Read("err");
  EXPECT_EQ(Read("out"), SummaryToJson(summary) + "\n");
  EXPECT_THAT(Read("err"), StartsWith("job small: async, servers 2, workers 2 with "));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/run/report.html"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/run/logs/worker-1.log"));
}

TEST_F(LaunchCommandTest, PrintsOneJsonObjectOnFailureToo) {
  Program("worker", "echo 'error: train.csv:3: want 5 columns, got 4'; exit 2");
  EXPECT_EQ(Run("job.textproto --run-dir run --json"), 2);
  const auto failed = nlohmann::json::parse(Read("out"));
  EXPECT_THAT(std::string(failed["error"]), HasSubstr("ended with status 2: train.csv:3: want 5 columns, got 4"));
  EXPECT_EQ(failed["reason"], "INVALID_ARGUMENT");
  EXPECT_EQ(failed["exit_code"], 2);
  EXPECT_EQ(Run("job.textproto --sevrers 2 --json"), 2);
  EXPECT_EQ(nlohmann::json::parse(Read("out"))["error"], "unknown flag --sevrers; did you mean \"--servers\"?");
}

TEST_F(LaunchCommandTest, RecordsHowItEndedInItsRunDirectory) {
  Program("worker", "echo 'error: no memory'; exit 1");
  EXPECT_EQ(Run("job.textproto --run-dir failed --max-restarts 0"), 1);
  const auto failed = LaunchRecord::Read(folder_ + "/failed");
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_FALSE(failed->running);
  EXPECT_EQ(failed->exit_status, 1);
  EXPECT_THAT(failed->error, HasSubstr("no memory"));
  Write("ready.json", SummaryToJson({.job = "small"}) + "\n");
  Program("worker", "cp ready.json \"$run_dir/summary.json\"; exit 0");
  EXPECT_EQ(Run("job.textproto --run-dir good"), 0) << Read("err");
  EXPECT_EQ(LaunchRecord::Read(folder_ + "/good")->exit_status, 0);
}

TEST_F(LaunchCommandTest, RefusesADirectoryWithCheckpointsOfAnotherRun) {
  std::filesystem::create_directories(folder_ + "/run/checkpoints");
  Write("run/checkpoints/checkpoint-00000003.manifest", "");
  EXPECT_EQ(Run("job.textproto --run-dir run"), 2);
  EXPECT_EQ(Read("err"),
            "error: run directory run: already holds run/checkpoints/checkpoint-00000003.manifest; choose another one, "
            "or move it away\n");
}

TEST_F(LaunchCommandTest, RefusesADirectoryInWhichAnotherLaunchRuns) {
  Program("worker", R"(
trap 'exit 130' TERM
echo ready > $PIPE
while :; do tail -f /dev/null & wait; done
)");
  Process process = Start("job.textproto --run-dir run");
  ASSERT_EQ(NextLine(), "ready");
  const std::string job = Read("run/job.textproto");
  EXPECT_TRUE(LaunchRecord::Read(folder_ + "/run")->running);
  EXPECT_EQ(Run("job.textproto --mode async --run-dir run"), 2);
  EXPECT_THAT(Read("err"), HasSubstr("run directory run: another launch is running in it"));
  EXPECT_EQ(Read("run/job.textproto"), job);
  process.Signal(SIGTERM);
  EXPECT_EQ(Wait(process).number, 130);
  EXPECT_EQ(LaunchRecord::Read(folder_ + "/run")->exit_status, 130);
}

TEST_F(LaunchCommandTest, TellsWorkersWhatIsOtherwiseThanInTheJobFile) {
  Program("worker", "echo \"$job$mode$steps_ahead$codec$precision\" > $PIPE; exit 1");
  EXPECT_EQ(Run("job.textproto --mode bounded --steps_ahead 4 --codec int8 --precision tf32"), 1);
  const std::string job = NextLine();
  EXPECT_THAT(job, MatchesRegex("runs/small-[0-9TZ]+/job.textproto"));
  EXPECT_THAT(Read(job), HasSubstr("# Written by ballast launch: job.textproto with --mode bounded --steps_ahead 4 "
                                   "--codec int8 --precision tf32. "));
  for (const char* text : {"bounded {\n    steps_ahead: 4\n", "gradients: ENCODING_INT8\n", "precision: TF32\n"}) {
    EXPECT_THAT(Read(job), HasSubstr(text));
  }
  EXPECT_THAT(Read("err"),
              StartsWith("job small: bounded, 4 steps ahead, codec int8, precision tf32, servers 1, workers 1 with "));
}

TEST_F(LaunchCommandTest, TheResolvedJobFileGivesTheSameJobAgain) {
  // A line break in the file's name does not end the comment that names it.
  std::filesystem::create_directories(folder_ + "/jobs");
  Write("jobs/line\nbreak.textproto", kJob);
  Write("jobs/train.csv", "1,2\n");
  Program("worker", "exit 1");
  EXPECT_EQ(Run("jobs/line* --mode bounded --steps_ahead 4 --workers 2 --threads 3 --run-dir first"), 1);
  EXPECT_EQ(Run("first/job.textproto --workers 2 --threads 3 --run-dir second"), 1);
  const std::vector<std::string> first = absl::StrSplit(Read("first/job.textproto"), absl::MaxSplits('\n', 2));
  const std::vector<std::string> second = absl::StrSplit(Read("second/job.textproto"), absl::MaxSplits('\n', 2));
  ASSERT_EQ(first.size(), 3);
  ASSERT_EQ(second.size(), 3);
  EXPECT_EQ(first[0],
            "# Written by ballast launch: jobs/line\\nbreak.textproto with --mode bounded --steps_ahead 4. Paths are "
            "absolute, and defaults are filled in.");
  EXPECT_EQ(first[1],
            "# Repeat the run with: ballast launch job.textproto --servers 1 --workers 2 --threads 3 --device auto");
  EXPECT_EQ(second[0],
            "# Written by ballast launch: first/job.textproto. Paths are absolute, and defaults are filled in.");
  EXPECT_EQ(second[1], first[1]);
  EXPECT_EQ(second[2], first[2]);
  EXPECT_THAT(first[2], HasSubstr(absl::StrCat("/TheResolvedJobFileGivesTheSameJobAgain/jobs/train.csv\"\n")));
}

TEST_F(LaunchCommandTest, SetsFieldsOfTheJob) {
  Write("more.textproto", "training { epochs: 8 batch_size: 9 }");
  Program("worker", "exit 1");
  EXPECT_EQ(Run("job.textproto --run-dir run --set-file more.textproto --set training.batch_size=16 "
                "--set policy='bounded { steps_ahead: 4 }' --set model.layers[+]='relu {}'"),
            1);
  const std::string job = Read("run/job.textproto");
  EXPECT_THAT(job, StartsWith("# Written by ballast launch: job.textproto with --set-file more.textproto --set "
                              "training.batch_size=16 --set 'policy=bounded { steps_ahead: 4 }' --set "
                              "'model.layers[+]=relu {}'. Paths are absolute, and defaults are filled in.\n"));
  for (const char* text : {"epochs: 8\n", "batch_size: 16\n", "steps_ahead: 4\n", "relu {\n", "wait_seconds: 60\n"}) {
    EXPECT_THAT(job, HasSubstr(text));
  }
  EXPECT_THAT(Read("err"), StartsWith("job small: bounded, 4 steps ahead, servers 1"));
}

TEST_F(LaunchCommandTest, ReadsTheJobFromStandardInput) {
  Program("worker", "exit 1");
  EXPECT_EQ(Run("- --run-dir run < job.textproto"), 1);
  EXPECT_THAT(Read("run/job.textproto"), StartsWith("# Written by ballast launch: standard input. Paths"));
  EXPECT_THAT(Read("run/job.textproto"), HasSubstr("/ReadsTheJobFromStandardInput/train.csv\"\n"));
}

TEST_F(LaunchCommandTest, AVariableOfTheEnvironmentActsAsTheFlagAndNothingElseReachesTheProcesses) {
  setenv("BALLAST_MODE", "async", 1);
  setenv("BALLAST_WORKERS", "2", 1);
  setenv("BALLAST_SHARED_MEMORY", "false", 1);
  Program("worker", "echo \"-$BALLAST_MODE-$BALLAST_SHARED_MEMORY-\" > $PIPE; exit 1");
  EXPECT_EQ(Run("job.textproto --run-dir run --workers 1"), 1);
  EXPECT_EQ(NextLine(), "---");
  EXPECT_THAT(Read("err"), StartsWith("the environment variable BALLAST_MODE sets --mode=async\n"
                                      "warning: BALLAST_SHARED_MEMORY in the environment: ignored, because launch has "
                                      "no such flag\n"
                                      "job small: async, servers 1, workers 1 with "));
  EXPECT_THAT(Read("run/job.textproto"), HasSubstr("async {\n"));
  for (const char* name : {"BALLAST_MODE", "BALLAST_WORKERS", "BALLAST_SHARED_MEMORY"}) unsetenv(name);
}

TEST_F(LaunchCommandTest, NeverOverwritesItsJobFile) {
  EXPECT_EQ(Run("job.textproto --run-dir ."), 2);
  EXPECT_THAT(Read("err"), HasSubstr("run directory .: got the job file job.textproto in it"));
  EXPECT_EQ(Read("job.textproto"), kJob);
}

TEST_F(LaunchCommandTest, TellsWorkersHowManyGpusShareABatch) {
  Program("worker", "echo \"$gpus\" > $PIPE; exit 1");
  EXPECT_EQ(Run("job.textproto --gpus all"), 1);
  EXPECT_EQ(NextLine(), "all");
}

TEST_F(LaunchCommandTest, ClosesWithTheReportsPath) {
  Write("ready.json", SummaryToJson({.test_accuracy = 0.8913}) + "\n");
  Program("worker", "cp ready.json \"$run_dir/summary.json\"; exit 0");
  ASSERT_EQ(Run("job.textproto --run-dir=run"), 0) << Read("err");
  EXPECT_THAT(Read("out"), HasSubstr("test accuracy: 0.8913\nreport: run/report.html\n"));
}

TEST_F(LaunchCommandTest, ARegressionClosesWithItsTestLoss) {
  Write("ready.json", SummaryToJson({.test_loss = 0.125}) + "\n");
  Program("worker", "cp ready.json \"$run_dir/summary.json\"; exit 0");
  ASSERT_EQ(Run("job.textproto --run-dir=run"), 0) << Read("err");
  EXPECT_THAT(Read("out"), HasSubstr("test loss: 0.125\nreport: run/report.html\n"));
}

TEST_F(LaunchCommandTest, AClickModelClosesWithItsAucTheBestPossibleAndItsRows) {
  Write("ready.json", SummaryToJson({.samples_per_second = 1000,
                                     .test_loss = 0.4512,
                                     .test_accuracy = 0.79,
                                     .test_auc = 0.78434,
                                     .bayes_auc = 0.807,
                                     .log_loss = 0.4512,
                                     .calibration = 1.25,
                                     .rows = 1234567}) +
                          "\n");
  Program("worker", "cp ready.json \"$run_dir/summary.json\"; exit 0");
  ASSERT_EQ(Run("job.textproto --run-dir=run"), 0) << Read("err");
  EXPECT_THAT(Read("out"), HasSubstr("test accuracy: 0.7900\n"
                                     "test AUC: 0.7843 (Bayes 0.8070), log loss 0.4512, calibration 1.25\n"
                                     "rows of all tables: 1,234,567\nreport: run/report.html\n"));
  ASSERT_EQ(Run("job.textproto --run-dir=other --json"), 0) << Read("err");
  const auto json = nlohmann::json::parse(Read("out"));
  EXPECT_EQ(json["test_auc"], 0.78434);
  EXPECT_EQ(json["bayes_auc"], 0.807);
  EXPECT_EQ(json["log_loss"], 0.4512);
  EXPECT_EQ(json["rows"], 1234567);
  EXPECT_EQ(json["samples_per_second"], 1000);
}

TEST_F(LaunchCommandTest, StepsAheadHasAnOldName) {
  Program("worker", "exit 1");
  EXPECT_EQ(Run("job.textproto --mode bounded --staleness 4 --run-dir run"), 1);
  EXPECT_THAT(Read("run/job.textproto"), HasSubstr(" with --mode bounded --steps_ahead 4. "));
}

TEST_F(LaunchCommandTest, MakesARunFolderOfItsOwn) {
  Program("worker", "echo \"$run_dir\" > $PIPE; exit 1");
  EXPECT_EQ(Run("job.textproto"), 1);
  EXPECT_THAT(NextLine(), StartsWith("runs/small-"));
}

TEST_F(LaunchCommandTest, RefusesAJobFileWithATypo) {
  Write("job.textproto", "name: \"small\"\ntraning { epochs: 1 }\n");
  EXPECT_EQ(Run("job.textproto --run-dir run"), 2);
  EXPECT_THAT(Read("err"), HasSubstr("error: job.textproto:2:1: "));
  EXPECT_THAT(Read("err"), HasSubstr("did you mean \"training\"?"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/run"));
}

TEST_F(LaunchCommandTest, RefusesWrongFlags) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "launch: got 0 job files, want exactly one"},
      {"a b", "launch: got 2 job files, want exactly one"},
      {"missing.textproto", "missing.textproto"},
      {"job.textproto --servers 0", "flag --servers: got \"0\", want a number from 1 to 64"},
      {"job.textproto --workers 65", "flag --workers: got \"65\", want a number from 1 to 64"},
      {"job.textproto --threads no", "flag --threads: got \"no\""},
      {"job.textproto --mode fast", "flag --mode: got \"fast\", want sync, async, bounded, local_sgd"},
      {"job.textproto --mode=", "flag --mode: got \"\""},
      {"job.textproto --mode bounded", "flag --mode: got \"bounded\", want --steps_ahead too"},
      {"job.textproto --mode bounded --steps-ahead -1",
       "flag --steps_ahead: got \"-1\", want a number from 0 to 1000000"},
      {"job.textproto --mode sync --steps-ahead 4", "flag --steps_ahead: got \"4\", want it with mode bounded only"},
      {"job.textproto --mode bounded --steps-ahead 4 --staleness 4",
       "flag --staleness: got it and --steps-ahead, its new name"},
      {"job.textproto --mode bounded --staleness=", "flag --staleness: got \"\""},
      {"job.textproto --workers 2 --quorum 3", "flag --quorum: got \"3\", want a number from 1 to 2"},
      {"job.textproto --local_steps 4", "flag --local_steps: got \"4\", want it with mode local_sgd only"},
      {"job.textproto --codec zip",
       "flag --codec: unknown codec \"zip\", want one of fp32, fp16, bf16, int8, top_k, sign"},
      {"job.textproto --value_codec top_k",
       "flag --value_codec: codec of values: got top_k, which is for gradients only"},
      {"job.textproto --precision bf61", "flag --precision: got \"bf61\", want fp32, tf32, bf16, fp16; did you mean"},
      {"job.textproto --device gpu", "flag --device: got \"gpu\", want auto or cpu or cuda"},
      {"job.textproto --gpus 65", "flag --gpus: got \"65\", want a number from 1 to 64, or all"},
      {"job.textproto --chaos kill-server=5s",
       "flag --chaos: got kill-server with durability none, want checkpoint, wal, wal_sync or standby: the "
       "job would not survive the loss of a server"},
      {"job.textproto --hosts a,a", "flag --hosts: got \"a,a\", want each host once; a:2 has two workers"},
      {"job.textproto --hosts a:0", "flag --hosts: got 0 workers, want 1 to 64 on all hosts"},
      {"job.textproto --hosts a:2 --workers 3", "flag --workers: got 3, want 2 as in --hosts, or no --workers"},
      {"job.textproto --rsh rsh", "flag --rsh: requires --hosts"},
      {"job.textproto --hosts a --remote-bin bin", "flag --remote-bin: got \"bin\", want an absolute path"},
      {"job.textproto --hosts localhost,no-such-host.invalid",
       "host no-such-host.invalid: its name cannot be resolved"},
      {"job.textproto --sevrers 2", "unknown flag --sevrers; did you mean \"--servers\"?"},
      {"job.textproto --epochs 5", "unknown flag --epochs; did you mean \"--set training.epochs=VALUE\"?"},
      {"job.textproto --batch-size=5", "unknown flag --batch-size; did you mean \"--set training.batch_size=VALUE\"?"},
      {"job.textproto --learning_rate 1",
       "unknown flag --learning_rate; did you mean \"--set optimizer.sgd.learning_rate=VALUE\"?"},
      {"job.textproto --lr 1", "unknown flag --lr; did you mean \"--set optimizer.sgd.learning_rate=VALUE\"?"},
      {"job.textproto --units 1", "unknown flag --units; did you mean \"--set model.layers[0].dense.units=VALUE\"?"},
      {"job.textproto --set training.epoch=3",
       "flag --set: training has no field \"epoch\"; did you mean training.epochs?"},
      {"job.textproto --set training.epochs=0",
       "error: --set training.epochs=0: training.epochs: got 0, want 1 to 1000000"},
      {"job.textproto --set policy.async={} --mode sync",
       "flag --mode: got \"sync\" and --set policy.async={}, which are for the same field; want one of them"},
      {"job.textproto --set data.train.csv.path=no.csv",
       "/no.csv: No such file or directory (relative paths in a file are relative to its directory, others to the "
       "current directory)"},
      {"job.textproto --run-dir /proc/run", "cannot write the run directory /proc/run (--run_dir names another one)"},
  };
  for (const auto& [flags, message] : cases) {
    EXPECT_EQ(Run(flags), 2) << flags;
    EXPECT_THAT(Read("err"), StartsWith("error: ")) << flags;
    EXPECT_THAT(Read("err"), HasSubstr(message)) << flags;
  }
}

TEST_F(LaunchCommandTest, NeverOverwritesARun) {
  std::filesystem::create_directories(folder_ + "/run");
  Write("run/metrics.jsonl", "");
  EXPECT_EQ(Run("job.textproto --run-dir run"), 2);
  EXPECT_THAT(Read("err"), HasSubstr("run"));
}

TEST_F(LaunchCommandTest, SaysWhichProgramIsMissing) {
  setenv("BALLAST_WORKER_BINARY", "/nonexistent", 1);
  EXPECT_EQ(Run("job.textproto"), 1);
  EXPECT_EQ(Read("err"), "error: environment variable BALLAST_WORKER_BINARY: /nonexistent is not an executable file\n");
}

TEST_F(LaunchCommandTest, PassesOnAWorkersBadInput) {
  Program("worker", "echo 'error: train.csv:3: want 5 columns, got 4'; exit 2");
  EXPECT_EQ(Run("job.textproto --run-dir run"), 2);
  EXPECT_THAT(Read("err"), HasSubstr("ended with status 2: train.csv:3: want 5 columns, got 4\n"));
  EXPECT_EQ(Read("err").find("train.csv:3"), Read("err").rfind("train.csv:3")) << "the error must be shown once";
  EXPECT_EQ(Read("out"), "");
}

TEST_F(LaunchCommandTest, ShowsLogsOnlyWhenVerbose) {
  Program("worker", "echo 'hello from here'; exit 1");
  Run("job.textproto --run-dir quiet");
  EXPECT_THAT(Read("err"), ::testing::Not(HasSubstr("[worker 0]")));
  Run("job.textproto --run-dir loud --verbose");
  EXPECT_THAT(Read("err"), HasSubstr("[worker 0] hello from here\n"));
}

TEST_F(LaunchCommandTest, SavesWhatIsThereWhenAskedToEnd) {
  Program("worker", R"(
trap 'echo saved; exit 130' TERM
echo ready > $PIPE
while :; do tail -f /dev/null & wait; done
)");
  Process process = Start("job.textproto --run-dir run");
  ASSERT_EQ(NextLine(), "ready");
  process.Signal(SIGTERM);
  EXPECT_EQ(Wait(process).number, 130);
  EXPECT_EQ(Read("run/logs/worker-0.log"), "saved\n");
  EXPECT_THAT(Read("err"), HasSubstr("warning: nothing was saved: "));
}

TEST_F(LaunchCommandTest, LeavesNoChildWhenItIsKilled) {
  // Its output goes to /dev/null: tail would exit by itself if its output had no reader.
  Program("server", R"(
echo $$ > $PIPE
[ -n "$address_file" ] && echo 127.0.0.1:1 > "$address_file.new" && mv "$address_file.new" "$address_file"
trap '' TERM INT HUP
exec tail -f /dev/null > /dev/null
)");
  Program("worker", "trap '' TERM INT HUP; echo $$ > $PIPE; exec tail -f /dev/null > /dev/null");
  Process process = Start("job.textproto --servers 2 --workers 2");
  std::vector<int> handles;
  for (int child = 0; child < 4; ++child) {
    pid_t pid = 0;
    ASSERT_TRUE(absl::SimpleAtoi(NextLine(), &pid));
    handles.push_back(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    ASSERT_GE(handles.back(), 0);
  }
  kill(process.pid(), SIGKILL);
  for (int handle : handles) ExpectEnd(handle);
}

}  // namespace
}  // namespace ballast
