// SPDX-License-Identifier: Apache-2.0
#include "cli/run/program_recorder.h"

#include <filesystem>

#include "common/run/metrics.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"

namespace ballast {
namespace {

v1::GetProgressResponse Progress(const std::string& text) {
  v1::GetProgressResponse response;
  EXPECT_TRUE(
      google::protobuf::TextFormat::ParseFromString("servers: 1 workers: 2 progress { " + text + " }", &response));
  return response;
}

class ProgramRecorderTest : public testing::Test {
 protected:
  ProgramRecorderTest() : folder_(testing::TempDir() + "/recorded") {
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directories(folder_.path());
  }
  Metrics Written() { return ReadMetrics(folder_.metrics()).value(); }

  const RunFolder folder_;
};

TEST_F(ProgramRecorderTest, WritesEachLineAndEvaluationOnceHoweverOftenItIsPolled) {
  ProgramRecorder recorder = ProgramRecorder::Create(folder_).value();
  const v1::GetProgressResponse progress =
      Progress("lines: 1 line { examples: 10 loss_sum: 5 } examples: 10 last_evaluation { epoch: 1 loss: 0.5 }");
  recorder.OnProgress(progress);
  recorder.OnProgress(progress);
  recorder.OnProgress(Progress("lines: 2 line { examples: 4 } examples: 14 last_evaluation { epoch: 2 loss: 0.25 }"));
  EXPECT_EQ(Written().train.size(), 2);
  EXPECT_EQ(Written().test.size(), 2);
}

TEST_F(ProgramRecorderTest, AnEpochHasItsLineOnceItIsDoneAlsoWithoutAnEvaluation) {
  ProgramRecorder recorder = ProgramRecorder::Create(folder_).value();
  const std::string first = "epoch_work { epoch: 0 examples: 10 loss_sum: 5 } ";
  recorder.OnProgress(Progress("epochs_done: 1 seconds: 2 examples: 10 " + first));
  recorder.OnProgress(Progress("epochs_done: 1 seconds: 3 examples: 10 last_evaluation { epoch: 1 } " + first));
  recorder.OnWorkersEnded(
      Progress("epochs_done: 2 seconds: 6 examples: 30 epoch_work { epoch: 1 examples: 20 loss_sum: 5 }"), {});
  const Metrics written = Written();
  ASSERT_EQ(written.epochs.size(), 2);
  EXPECT_EQ(written.epochs[0].seconds, 2);
  EXPECT_EQ(written.epochs[1].samples_per_second, 5);
}

TEST_F(ProgramRecorderTest, SummarizesWhatWorkersAndShardsCounted) {
  ProgramRecorder recorder = ProgramRecorder::Create(folder_).value();
  v1::GetStatusResponse shard;
  shard.set_max_staleness(3);
  recorder.OnWorkersEnded(Progress("examples: 40 seconds: 4 step: 7 last_evaluation { epoch: 1 loss: 2 accuracy: 1 }"),
                          {shard});
  ASSERT_TRUE(recorder.Finish(/*interrupted=*/true).ok());
  const Summary summary = ReadSummary(folder_.summary()).value();
  EXPECT_EQ(summary.examples, 40);
  EXPECT_EQ(summary.samples_per_second, 10);
  EXPECT_EQ(summary.workers, 2);
  EXPECT_EQ(summary.test_accuracy, 1);
  EXPECT_EQ(summary.max_staleness, 3);
  EXPECT_TRUE(summary.interrupted);
}

TEST_F(ProgramRecorderTest, ReportsThatTheMetricsCannotBeWritten) {
  std::filesystem::remove_all(folder_.path());
  EXPECT_FALSE(ProgramRecorder::Create(folder_).ok());
}

}  // namespace
}  // namespace ballast
