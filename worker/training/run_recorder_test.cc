// SPDX-License-Identifier: Apache-2.0
#include "worker/training/run_recorder.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/job/job_file.h"
#include "common/run/safetensors.h"
#include "common/run/summary.h"
#include "common/storage/file.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::StartsWith;

template <typename Message>
Message Parse(const char* text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

class RunRecorderTest : public ModelFixture {
 protected:
  // A recorder in a new directory, or one that continues there.
  static RunRecorder Record(const std::string& name, bool resumes = false) {
    const std::string path = testing::TempDir() + "/" + name;
    if (!resumes) std::filesystem::remove_all(path);
    absl::StatusOr<RunRecorder> recorder = RunRecorder::Create({.run_dir = path, .resumes = resumes});
    EXPECT_TRUE(recorder.ok()) << recorder.status();
    return *std::move(recorder);
  }
  static Metrics Written(const RunRecorder& recorder) { return ReadMetrics(recorder.folder().metrics()).value(); }
};

constexpr auto Progress = Parse<v1::JobProgress>;

TEST_F(RunRecorderTest, WritesEachLineOnceWithItsSpan) {
  RunRecorder recorder = Record("lines");
  v1::JobProgress progress = Progress(
      "epoch: 1 step: 30 examples: 640 seconds: 8 lines: 3 line_seconds: 0.5 train_loss: 0.25 samples_per_second: 640 "
      "wait_share: 0.125 line { examples: 320 steps: 4 pushes: 8 staleness_sum: 12 max_staleness: 3 dropped: 2 "
      "skipped: 1 bytes_sent: 400 bytes_received: 800 }");
  for (int report = 0; report < 2; ++report) ASSERT_TRUE(recorder.Train(progress, 2.0f).ok());
  const Metrics metrics = Written(recorder);
  ASSERT_EQ(metrics.train.size(), 1);
  const TrainMetrics& line = metrics.train[0];
  EXPECT_EQ(line.epoch, 2);
  EXPECT_EQ(line.over_examples, 320);
  EXPECT_EQ(line.over_seconds, 0.5);
  EXPECT_EQ(line.loss, 0.25);
  EXPECT_EQ(line.samples_per_second, 640);
  EXPECT_EQ(line.staleness, 1.5);
  EXPECT_EQ(line.max_staleness, 3);
  EXPECT_EQ(line.wait_share, 0.125);
  EXPECT_EQ(line.bytes_sent, 100);
  EXPECT_EQ(line.bytes_received, 200);
  EXPECT_EQ(line.dropped, 2);
  EXPECT_EQ(line.skipped_steps, 1);
  EXPECT_EQ(line.loss_scale, 2);
}

TEST_F(RunRecorderTest, AnEpochHasItsLineOnceItIsDoneAndEvaluated) {
  RunRecorder recorder = Record("epochs");
  v1::JobProgress progress = Progress(
      "examples: 70 seconds: 4 epoch_work { epoch: 0 examples: 40 loss_sum: 20 } epoch_work { epoch: 1 examples: 30 "
      "loss_sum: 3 }");
  ASSERT_TRUE(recorder.EndEpochs(progress, /*evaluated=*/1).ok());
  EXPECT_TRUE(Written(recorder).epochs.empty()) << "another worker is still at it";
  progress.set_epochs_done(1);
  ASSERT_TRUE(recorder.EndEpochs(progress, /*evaluated=*/0).ok());
  EXPECT_TRUE(Written(recorder).epochs.empty());
  for (int report = 0; report < 2; ++report) ASSERT_TRUE(recorder.EndEpochs(progress, /*evaluated=*/1).ok());
  ASSERT_EQ(Written(recorder).epochs.size(), 1);
  const EpochMetrics line = Written(recorder).epochs[0];
  EXPECT_EQ(line.epoch, 1);
  EXPECT_EQ(line.epoch_examples, 40);
  EXPECT_EQ(line.train_loss, 0.5);
  EXPECT_EQ(line.samples_per_second, 17.5) << "of the job, whose other workers are further";
  EXPECT_EQ(line.seconds, 4);
}

TEST_F(RunRecorderTest, EpochsThatEndTogetherShareTheirTime) {
  RunRecorder recorder = Record("together");
  ASSERT_TRUE(recorder
                  .EndEpochs(Progress("examples: 40 seconds: 8 epochs_done: 2 epoch_work { epoch: 0 examples: 10 } "
                                      "epoch_work { epoch: 1 examples: 30 }"),
                             2)
                  .ok());
  const Metrics metrics = Written(recorder);
  ASSERT_EQ(metrics.epochs.size(), 2);
  EXPECT_EQ(metrics.epochs[0].seconds, 2);
  EXPECT_EQ(metrics.epochs[1].seconds, 8);
  EXPECT_EQ(metrics.epochs[0].samples_per_second, 5);
  EXPECT_EQ(metrics.epochs[1].samples_per_second, 5);
}

TEST_F(RunRecorderTest, AProcessThatContinuesRepeatsNoLine) {
  v1::JobProgress progress =
      Progress("seconds: 4 lines: 1 line { examples: 10 } epochs_done: 1 epoch_work { epoch: 0 examples: 10 }");
  {
    RunRecorder first = Record("continued");
    ASSERT_TRUE(first.Train(progress, std::nullopt).ok());
    ASSERT_TRUE(first.EndEpochs(progress, 1).ok());
  }
  RunRecorder second = Record("continued", /*resumes=*/true);
  ASSERT_TRUE(second.Resume(progress).ok());
  ASSERT_TRUE(second.Train(progress, std::nullopt).ok());
  ASSERT_TRUE(second.EndEpochs(progress, 1).ok());
  EXPECT_EQ(Written(second).train.size(), 1);
  EXPECT_EQ(Written(second).epochs.size(), 1);
  // The job has returned to a checkpoint before the end of the epoch.
  progress.set_epochs_done(0);
  ASSERT_TRUE(second.Resume(progress).ok());
  progress.set_epochs_done(1);
  ASSERT_TRUE(second.EndEpochs(progress, 1).ok());
  EXPECT_EQ(Written(second).epochs.size(), 2);
}

TEST_F(RunRecorderTest, AJobResumedInANewDirectoryHasNoLinesOfItsEarlierEpochs) {
  RunRecorder recorder = Record("resumed");
  v1::JobProgress progress = Progress(
      "examples: 15 seconds: 4 epochs_done: 1 epoch_work { epoch: 0 examples: 10 } "
      "epoch_work { epoch: 1 examples: 5 loss_sum: 2 }");
  ASSERT_TRUE(recorder.Resume(progress).ok());
  progress.set_epochs_done(2);
  progress.set_examples(20);
  progress.set_seconds(5);
  progress.mutable_epoch_work(1)->set_examples(10);
  progress.mutable_epoch_work(1)->set_loss_sum(5);
  ASSERT_TRUE(recorder.EndEpochs(progress, 2).ok());
  const Metrics metrics = Written(recorder);
  ASSERT_EQ(metrics.epochs.size(), 1);
  EXPECT_EQ(metrics.epochs[0].epoch, 2);
  EXPECT_EQ(metrics.epochs[0].train_loss, 0.5) << "over the whole epoch";
  EXPECT_EQ(metrics.epochs[0].samples_per_second, 5) << "since the job resumed";
}

TEST_F(RunRecorderTest, TheSummaryIsOfTheWholeJobNotOfOneProcess) {
  const std::unique_ptr<Model> model =
      CreateRandom("layers { dense { units: 1 } } loss { mean_squared_error {} }", 2, 1.0f);
  ASSERT_NE(model, nullptr);
  RunRecorder recorder = Record("totals");
  const v1::JobProgress progress = Progress(
      "examples: 640 seconds: 8 epochs_done: 2 epoch_train_loss: 0.25 epoch_work { epoch: 2 examples: 40 loss_sum: 10 "
      "} "
      "total { examples: 640 steps: 10 seconds: 16 wait_seconds: 4 pushes: 20 staleness_sum: 30 max_staleness: 3 "
      "dropped: 5 skipped: 1 bytes_sent: 1000 bytes_received: 4000 }");
  ASSERT_TRUE(recorder.Finish(*model, progress, {.gpu_peak_bytes = {64}}, false).ok());
  const Summary summary = ReadSummary(recorder.folder().summary()).value();
  EXPECT_EQ(summary.epochs, 2);
  EXPECT_EQ(summary.samples_per_second, 80);
  EXPECT_EQ(summary.train_loss, 0.25);
  EXPECT_EQ(summary.train_loss_epoch, 3);
  EXPECT_EQ(summary.train_loss_examples, 40);
  EXPECT_EQ(summary.wait_share, 0.25);
  EXPECT_EQ(summary.mean_staleness, 1.5);
  EXPECT_EQ(summary.max_staleness, 3);
  EXPECT_EQ(summary.dropped, 5);
  EXPECT_EQ(summary.skipped_steps, 1);
  EXPECT_EQ(summary.bytes_sent, 1000);
  EXPECT_EQ(summary.gradient_bytes, 1000);
  EXPECT_EQ(summary.bytes_received, 4000);
  EXPECT_EQ(summary.bytes_sent_per_step, 100);
  EXPECT_EQ(summary.bytes_received_per_step, 400);
}

// Two examples of two features; the unbiased variance of the second feature is 2.
TEST_F(RunRecorderTest, ASavedModelHasItsWeightsAndWhatItsBatchNormsHaveSeen) {
  const std::unique_ptr<Model> model = CreateRandom(
      "layers { batch_norm { momentum: 0.5 } } layers { dense { units: 1 } } loss { mean_squared_error {} }", 2, 1.0f);
  ASSERT_NE(model, nullptr);
  NoHooks hooks;
  ASSERT_TRUE(model->Train({.features = {4, 1, 4, 3}, .labels = {0, 0}, .examples = 2}, hooks).ok());
  absl::StatusOr<RunRecorder> recorder = RunRecorder::Create({.run_dir = testing::TempDir() + "/saved_model"});
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  ASSERT_TRUE(recorder->Finish(*model, {}, {}, false).ok());

  const absl::StatusOr<Safetensors> saved = ReadSafetensors(recorder->folder().model());
  ASSERT_TRUE(saved.ok()) << saved.status();
  std::map<std::string, std::vector<float>> tensors;
  for (const LoadedTensor& tensor : saved->tensors) tensors[tensor.name] = tensor.values;
  EXPECT_THAT(tensors["batch_norm1/running_mean"], ElementsAre(2, 1));
  EXPECT_THAT(tensors["batch_norm1/running_variance"], ElementsAre(FloatNear(0.5, 1e-6), FloatNear(1.5, 1e-6)));
  const absl::Span<const float> weight = model->HostParameter(2);
  EXPECT_EQ(tensors["dense1/weight"], std::vector<float>(weight.begin(), weight.end()));
  EXPECT_EQ(tensors.size(), 6);
}

TEST_F(RunRecorderTest, KeepsTheJobFileThatLaunchHasWritten) {
  const RunFolder folder(testing::TempDir() + "/kept_job");
  std::filesystem::remove_all(folder.path());
  std::filesystem::create_directories(folder.path());
  const absl::StatusOr<v1::Job> job = ParseJob(R"(name: "small"
data { train { csv { path: "train.csv" } } }
model { layers { dense { units: 1 } } loss { mean_squared_error {} } }
training { epochs: 1 batch_size: 4 }
optimizer { sgd { learning_rate: 0.1 } }
)",
                                               "small");
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE(SaveJob(folder.job(), WithAbsolutePaths(*job, "/jobs"), "# from launch\n").ok());
  RunRecorder::Options options{.run_dir = folder.path(), .job = *job, .job_folder = "/jobs"};
  ASSERT_TRUE(RunRecorder::Create(options).ok());
  EXPECT_THAT(ReadFile(folder.job()).value_or(""), StartsWith("# from launch\n"));
  options.resumes = true;
  options.job.set_seed(7);
  ASSERT_TRUE(RunRecorder::Create(options).ok());
  const absl::StatusOr<v1::Job> other = LoadJob(folder.job());
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->seed(), 7);
  EXPECT_EQ(other->data().train().csv().path(), "/jobs/train.csv");
}

TEST_F(RunRecorderTest, WritesTheFiguresOfClicksIfAnEvaluationHasThem) {
  RunRecorder recorder = Record("clicks");
  v1::Evaluation evaluation;
  evaluation.set_epoch(1);
  evaluation.set_loss(0.5);
  ASSERT_TRUE(recorder.Test(evaluation, 1).ok());
  evaluation.set_epoch(2);
  evaluation.set_auc(0.75);
  evaluation.set_calibration(1.25);
  ASSERT_TRUE(recorder.Test(evaluation, 2).ok());
  const Metrics metrics = Written(recorder);
  ASSERT_EQ(metrics.test.size(), 2);
  EXPECT_EQ(metrics.test[0].auc, std::nullopt);
  EXPECT_EQ(metrics.test[0].log_loss, std::nullopt);
  EXPECT_EQ(metrics.test[1].auc, 0.75);
  EXPECT_EQ(metrics.test[1].log_loss, 0.5);
  EXPECT_EQ(metrics.test[1].calibration, 1.25);
}

// The AUC falls from epoch to epoch.
v1::Evaluation Evaluated(uint32_t epoch, double loss, double accuracy) {
  v1::Evaluation evaluation;
  evaluation.set_auc(1 - 0.125 * epoch);
  evaluation.set_calibration(1 + 0.125 * epoch);
  evaluation.set_bayes_auc(0.875);
  evaluation.set_epoch(epoch);
  evaluation.set_loss(loss);
  evaluation.set_accuracy(accuracy);
  return evaluation;
}

// Epoch 1 has the best AUC, epoch 2 the best loss, epoch 3 the best accuracy. The process ends after epoch 2, and
// another one continues.
TEST_F(RunRecorderTest, KeepsTheModelOfTheBestEpochEvenIfItsProcessEnds) {
  for (const auto& [metric, best, loss] :
       {std::tuple(v1::TEST_LOSS, 2, 0.1), std::tuple(v1::TEST_ACCURACY, 3, 0.3), std::tuple(v1::TEST_AUC, 1, 0.5)}) {
    const std::unique_ptr<Model> model =
        CreateRandom("layers { dense { units: 1 } } loss { mean_squared_error {} }", 2, 1.0f);
    ASSERT_NE(model, nullptr);
    const std::string run = absl::StrCat(testing::TempDir(), "/kept_", metric);
    std::filesystem::remove_all(run);
    RunRecorder::Options options{.run_dir = run};
    options.job.mutable_training()->set_keep_best(metric);
    const auto evaluate = [&](RunRecorder& recorder, const v1::Evaluation& evaluation) {
      const float epoch = evaluation.epoch();
      ASSERT_TRUE(model->SetParameter(0, {epoch, epoch}).ok());
      ASSERT_TRUE(recorder.KeepBest(*model, evaluation, {}).ok());
    };
    auto first = RunRecorder::Create(options);
    ASSERT_TRUE(first.ok()) << first.status();
    evaluate(*first, Evaluated(1, 0.5, 0.5));
    evaluate(*first, Evaluated(2, 0.1, 0.6));
    options.resumes = true;
    auto second = RunRecorder::Create(options);
    ASSERT_TRUE(second.ok()) << second.status();
    evaluate(*second, Evaluated(3, 0.3, 0.75));
    evaluate(*second, Evaluated(4, 0.2, 0.7));
    ASSERT_TRUE(second->Finish(*model, {}, {}, false).ok());

    const absl::StatusOr<Summary> summary = ReadSummary(second->folder().summary());
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->best_epoch, best);
    EXPECT_EQ(summary->test_loss, loss);
    EXPECT_EQ(summary->test_auc, 1 - 0.125 * best);
    EXPECT_EQ(summary->log_loss, loss);
    EXPECT_EQ(summary->calibration, 1 + 0.125 * best);
    EXPECT_EQ(summary->bayes_auc, 0.875);
    const absl::StatusOr<Safetensors> saved = ReadSafetensors(second->folder().model());
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_THAT(saved->tensors[0].values, ElementsAre(best, best));
  }
}

}  // namespace
}  // namespace ballast
