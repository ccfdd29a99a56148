// SPDX-License-Identifier: Apache-2.0
// Training that ends early, and models of the best epoch, by `ballast launch` with real servers and workers.
#include <map>

#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class EarlyStopTest : public JobTest {
 protected:
  // `training`: more fields of the job's training, which has that many epochs.
  void WriteStoppingJob(int epochs, const std::string& training) const {
    WriteJob({{"epochs: 3", absl::StrCat("epochs: ", epochs, " ", training)}});
  }
  // Makes each epoch worse than the one before: the test data has wrong labels.
  void MisleadTheTest() const {
    WriteData("test.csv", 60);
    std::string text = Read("test.csv");
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', end + 1)) {
      text[end - 1] = static_cast<char>('0' + (text[end - 1] - '0' + 1) % 3);
    }
    Write("test.csv", text);
  }
  std::map<std::string, std::vector<float>> Values(const std::string& run) const {
    std::map<std::string, std::vector<float>> values;
    for (const LoadedTensor& tensor : Model(run)) values[tensor.name] = tensor.values;
    return values;
  }
};

// No epoch improves the loss by 1000, so that the first one stays the best.
constexpr char kNeverBetter[] = "early_stopping { epochs: 2 min_change: 1000 }";

TEST_F(EarlyStopTest, InLockStepTheModelIsThatOfTheLastWholeEpoch) {
  WriteJob();
  Train({"--workers", "2"}, "three");
  Train({"--workers", "2", "--mode", "local_sgd", "--local-steps", "2"}, "three-local");
  WriteStoppingJob(50, kNeverBetter);
  const auto summary = Train({"--workers", "2"}, "stopped");
  EXPECT_EQ(summary["stopped_early"], true);
  EXPECT_EQ(summary["best_epoch"], nullptr);
  EXPECT_EQ(summary["epochs"], 3);
  EXPECT_EQ(summary["examples"], 3 * 157);
  EXPECT_EQ(Values("stopped"), Values("three"));
  Train({"--workers", "2", "--mode", "local_sgd", "--local-steps", "2"}, "stopped-local");
  EXPECT_EQ(Values("stopped-local"), Values("three-local"));
}

TEST_F(EarlyStopTest, InTheOtherModesTheWorkersFinishWhatTheyHaveBegun) {
  WriteStoppingJob(200, kNeverBetter);
  const std::vector<std::string> modes[] = {{"async"}, {"bounded", "--staleness", "2"}};
  for (const std::vector<std::string>& mode : modes) {
    std::vector<std::string> flags = {"--servers", "2", "--workers", "2", "--mode"};
    flags.insert(flags.end(), mode.begin(), mode.end());
    const auto summary = Train(flags, mode[0]);
    EXPECT_EQ(summary["stopped_early"], true) << mode[0];
    EXPECT_GE(summary["examples"], 3 * 157) << mode[0];
    EXPECT_LT(summary["examples"], 200 * 157) << mode[0];
  }
}

TEST_F(EarlyStopTest, SaysThatItStopsAndWhy) {
  WriteStoppingJob(50, kNeverBetter);
  ChildProcess launch = Launch({"--workers", "2"});
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
  // The terminal shows it too, unless the run is over before it is asked for.
  EXPECT_THAT(Read("run/logs/server-0.log"),
              HasSubstr("the training ends early: the test loss has not improved for 2 epochs; its best was "));
  EXPECT_THAT(Read("out"), HasSubstr("the training ended early, because the test metric did not improve\n"));
  EXPECT_THAT(Read("run/report.html"), HasSubstr("The training ended early"));
}

TEST_F(EarlyStopTest, KeepsTheModelOfTheBestEpoch) {
  WriteStoppingJob(1, "");
  MisleadTheTest();
  const auto one = Train({"--workers", "2"}, "one");
  WriteStoppingJob(6, "keep_best: TEST_LOSS early_stopping { epochs: 2 }");
  MisleadTheTest();
  const auto best = Train({"--workers", "2"}, "best");
  EXPECT_EQ(best["best_epoch"], 1);
  EXPECT_EQ(best["stopped_early"], true);
  EXPECT_EQ(best["epochs"], 3);
  EXPECT_EQ(best["test_loss"], one["test_loss"]);
  EXPECT_EQ(best["test_accuracy"], one["test_accuracy"]);
  EXPECT_EQ(Values("best"), Values("one"));
}

TEST_F(EarlyStopTest, AResumedRunKnowsItsBestEpochAndHowManyFollowed) {
  WriteStoppingJob(2, "keep_best: TEST_LOSS early_stopping { epochs: 3 }");
  MisleadTheTest();
  Train({"--workers", "2", "--durability", "checkpoint"}, "first");
  WriteStoppingJob(50, "keep_best: TEST_LOSS early_stopping { epochs: 3 }");
  MisleadTheTest();
  const auto resumed = Train({"--workers", "2", "--durability", "checkpoint", "--resume", Path("first")}, "resumed");
  EXPECT_EQ(resumed["best_epoch"], 1);
  EXPECT_EQ(resumed["stopped_early"], true);
  EXPECT_EQ(resumed["epochs"], 4) << "the best one and three without an improvement";
  EXPECT_EQ(Values("resumed"), Values("first"));
}

// Worker 0, for whose evaluations the others wait, and the coordinator die. After the loss of a worker in lock step, an
// epoch takes up to a second more.
TEST_F(EarlyStopTest, GoesOnThoughProcessesDie) {
  constexpr int kEpochs = 10;
  WriteStoppingJob(kEpochs, absl::StrCat("keep_best: TEST_LOSS early_stopping { epochs: ", kEpochs, " }"));
  // Long enough for the kills to find the job under way on any machine.
  WriteData("train.csv", 8000);
  ChildProcess launch = Launch({"--workers", "2", "--durability", "wal", "--verbose", "--json"});
  ASSERT_TRUE(launch.AwaitOutput("epoch 1: test loss")) << launch.output();
  Child(launch, "ballast_worker", "0").Signal(SIGKILL);
  ASSERT_TRUE(launch.AwaitOutput("epoch 5: test loss")) << launch.output();
  Child(launch, "ballast_server", "0").Signal(SIGKILL);
  const Summary summary = Finish(launch);
  EXPECT_EQ(summary.restarts, 2);
  EXPECT_EQ(summary.workers_lost, 1);
  EXPECT_EQ(summary.epochs, kEpochs);
  EXPECT_FALSE(summary.stopped_early);
  EXPECT_TRUE(summary.best_epoch.has_value());
}

TEST_F(EarlyStopTest, WithoutTestDataTheJobFileIsRefused) {
  WriteJob({{"  test { csv { path: \"test.csv\" label_column: -1 } }\n", ""},
            {"epochs: 3", "epochs: 3\n  keep_best: TEST_LOSS early_stopping { epochs: 1 }"}});
  ChildProcess launch = Launch({});
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 2") << launch.output();
  EXPECT_THAT(launch.output(), HasSubstr("job.textproto:13:24: training.early_stopping: got no test data, want "
                                         "data.test or data.test_share"));
  EXPECT_THAT(launch.output(), HasSubstr("job.textproto:13:3: training.keep_best: got no test data"));
}

}  // namespace
}  // namespace ballast
