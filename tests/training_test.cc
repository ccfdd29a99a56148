// SPDX-License-Identifier: Apache-2.0
// Jobs from their file to their results, by `ballast launch` with real servers and workers.
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/run/metrics.h"
#include "common/text/number_text.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using ::testing::SizeIs;

constexpr char kNoData[] = "the Debian package dataset-fashion-mnist is not installed";

class TrainingTest : public JobTest {
 protected:
  // Runs the job to its end; returns its summary.
  Summary Learn(const std::vector<std::string>& flags, const std::string& run = "run") const {
    Train(flags, run);
    return Printed();
  }

  // Writes an example of the guide as the job file, with changes; returns false if its data is not installed.
  bool WriteExample(const std::string& name, const std::vector<std::pair<std::string, std::string>>& changes) const {
    std::ostringstream text;
    text << std::ifstream("examples/" + name).rdbuf();
    EXPECT_TRUE(absl::StrContains(text.str(), changes[0].first));
    Write("job.textproto", absl::StrReplaceAll(text.str(), changes));
    return std::filesystem::exists("/usr/share/datasets/fashion-mnist");
  }

  // Compares names and shapes, and values bit for bit.
  static void ExpectSame(const std::vector<LoadedTensor>& a, const std::vector<LoadedTensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].name, b[i].name);
      EXPECT_EQ(a[i].shape, b[i].shape);
      EXPECT_EQ(a[i].values, b[i].values) << a[i].name;
    }
  }
};

struct Size {
  int servers;
  int workers;
  std::string mode;
};

class TrainingSizeTest : public TrainingTest, public ::testing::WithParamInterface<Size> {};

TEST_P(TrainingSizeTest, RunsTheSameJobFile) {
  const Size& size = GetParam();
  WriteJob();
  const auto json =
      Train({"--servers", absl::StrCat(size.servers), "--workers", absl::StrCat(size.workers), "--mode", size.mode});
  ASSERT_TRUE(json.is_object()) << Read("out");
  for (const char* key : {"job", "mode", "servers", "workers", "steps", "seconds", "samples_per_second", "train_loss",
                          "test_accuracy", "run_dir"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  const Summary summary = Printed();
  EXPECT_EQ(summary.job, "blobs");
  EXPECT_EQ(summary.mode, size.mode);
  EXPECT_EQ(summary.servers, size.servers);
  EXPECT_EQ(summary.workers, size.workers);
  EXPECT_EQ(summary.epochs, 3);
  EXPECT_EQ(summary.examples, 3 * 157);
  EXPECT_GT(summary.steps, 0);
  EXPECT_TRUE(std::isfinite(summary.train_loss));
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
  // 4 features, 16 units, 3 classes.
  EXPECT_EQ(summary.memory.weights, (4 * 16 + 16 + 16 * 3 + 3) * 4);
  EXPECT_GT(summary.memory.activations, 0);
  EXPECT_THAT(Read("run/logs/worker-0.log"), HasSubstr("memory "));
  EXPECT_EQ(Read("run/summary.json"), Read("out"));
  EXPECT_THAT(Model(), SizeIs(4));
  EXPECT_TRUE(std::filesystem::exists(Path("run/metrics.jsonl")));
  EXPECT_TRUE(std::filesystem::exists(Path("run/report.html")));
}

INSTANTIATE_TEST_SUITE_P(Sizes, TrainingSizeTest,
                         ::testing::Values(Size{1, 1, "sync"}, Size{2, 2, "sync"}, Size{5, 1, "sync"},
                                           Size{1, 4, "sync"}, Size{1, 1, "async"}, Size{2, 2, "async"},
                                           Size{1, 4, "async"}),
                         [](const auto& size) {
                           return absl::StrCat(size.param.servers, "Servers", size.param.workers, "Workers_",
                                               size.param.mode);
                         });

TEST_F(TrainingTest, LearnsATableWithText) {
  std::filesystem::copy_file("examples/fruit.csv", Path("fruit.csv"));
  WriteExample("fruit.textproto", {{"epochs: 50", "epochs: 60"}});
  const Summary summary = Learn({"--workers", "2"});
  EXPECT_EQ(summary.examples, 60 * 24);
  EXPECT_EQ(summary.test_accuracy.value_or(0), 1);
  // 5 features, 16 units, 3 classes.
  EXPECT_EQ(summary.memory.weights, (5 * 16 + 16 + 16 * 3 + 3) * 4);
}

// Returns the text after `before` up to `after` in a page.
std::string Between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t begin = text.find(before);
  EXPECT_NE(begin, std::string::npos) << before;
  if (begin == std::string::npos) return "";
  return text.substr(begin + before.size(), text.find(after, begin + before.size()) - begin - before.size());
}

// The lines of metrics.jsonl cover all examples; tile, legend, table, summary and terminal show the same figures.
TEST_F(TrainingTest, EveryFigureIsTheSameWhereverItIsShown) {
  WriteJob({{"batch_size: 8", "batch_size: 8 report_every_steps: 3"}});
  for (const std::string mode : {"sync", "async"}) {
    ChildProcess launch = Launch({"--workers", "2", "--mode", mode}, mode);
    ASSERT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
    const Summary summary = ReadSummary(Path(mode + "/summary.json")).value();
    const Metrics metrics = ReadMetrics(Path(mode + "/metrics.jsonl")).value();
    ASSERT_THAT(metrics.epochs, SizeIs(3));
    int64_t examples = 0;
    double seconds = 0, loss = 0, epochs_loss = 0;
    for (const TrainMetrics& line : metrics.train) {
      examples += line.over_examples;
      seconds += line.over_seconds;
      loss += line.over_examples * line.loss;
      EXPECT_NEAR(line.samples_per_second, line.over_examples / line.over_seconds, 1e-6 * line.samples_per_second);
      EXPECT_EQ(line.examples, examples);
    }
    for (const EpochMetrics& epoch : metrics.epochs) {
      EXPECT_EQ(epoch.epoch_examples, 157);
      epochs_loss += epoch.epoch_examples * epoch.train_loss;
    }
    EXPECT_EQ(examples, 3 * 157);
    EXPECT_EQ(summary.examples, 3 * 157);
    EXPECT_NEAR(loss, epochs_loss, 1e-6);
    EXPECT_LE(seconds, summary.seconds);
    EXPECT_NEAR(summary.samples_per_second, summary.examples / summary.seconds, 1e-6 * summary.samples_per_second);
    EXPECT_EQ(summary.train_loss, metrics.epochs.back().train_loss);
    EXPECT_EQ(summary.train_loss_epoch, 3);
    EXPECT_EQ(summary.train_loss_examples, 157);

    const std::string page = Read(mode + "/report.html"), shown = ValueText(summary.train_loss);
    EXPECT_EQ(Between(page, "<dt>Train loss</dt><dd>", "<"), shown);
    EXPECT_THAT(page, HasSubstr("mean over epoch 3; test "));
    EXPECT_EQ(Between(page, "</i>train <b>", "<"), shown + " in epoch 3");
    const std::string row = page.substr(page.rfind("<td>3</td><td>"));
    EXPECT_EQ(Between(row.substr(std::string("<td>3</td>").size()), "</td><td>", "<"), shown);
    EXPECT_EQ(Between(page, "<dt>Samples per second</dt><dd>", "<"), ValueText(summary.samples_per_second));
    EXPECT_EQ(Between(page, "</i>whole run <b>", "<"), ValueText(summary.samples_per_second));

    const std::string terminal = launch.output();
    EXPECT_THAT(terminal,
                HasSubstr(absl::StrFormat("epoch 3/3 done  train loss %.4g  test loss %.4g  test accuracy %.4f",
                                          summary.train_loss, *summary.test_loss, *summary.test_accuracy)));
    EXPECT_THAT(Read("out"), HasSubstr(absl::StrFormat("train loss %.4g in epoch 3\n", summary.train_loss)));
  }
}

// A run of far less than a second.
TEST_F(TrainingTest, ARegressionWithoutAMomentToSpareShowsItsEpochsAndItsTestLoss) {
  WriteJob({{"units: 3", "units: 1"},
            {"softmax_cross_entropy", "mean_squared_error"},
            {"learning_rate: 0.2", "learning_rate: 0.01"}},
           /*rows=*/9);
  for (const std::string mode : {"sync", "async"}) {
    ChildProcess launch = Launch({"--mode", mode}, mode);
    ASSERT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
    for (int epoch : {1, 2, 3})
      EXPECT_THAT(launch.output(), HasSubstr(absl::StrCat("epoch ", epoch, "/3 done  train loss ")));
    const Summary summary = ReadSummary(Path(mode + "/summary.json")).value();
    EXPECT_THAT(Read("out"), HasSubstr(absl::StrFormat("test loss: %.4g\n", summary.test_loss.value())));
  }
}

TEST_F(TrainingTest, TwoDeterministicWorkersGiveTheSameBitsOnEveryRunAndNumberOfServers) {
  WriteJob({{"relu {} }", "relu {} } layers { dropout { rate: 0.2 } }"}, {"sgd {", "adam {"}});
  Train({"--workers", "2"}, "first");
  const std::vector<LoadedTensor> first = Model("first");
  ASSERT_THAT(first, SizeIs(4));
  Train({"--workers", "2"}, "second");
  ExpectSame(first, Model("second"));
  Train({"--workers", "2", "--servers", "3"}, "third");
  ExpectSame(first, Model("third"));
}

TEST_F(TrainingTest, TheResolvedJobFileRepeatsTheRunFromAnotherDirectory) {
  WriteJob();
  Train({"--mode", "local_sgd", "--local_steps", "3", "--codec", "int8"}, "first");
  const std::string resolved = Read("first/job.textproto");
  folder_ += "/elsewhere";
  std::filesystem::create_directory(folder_);
  Write("job.textproto", resolved);
  Train({}, "run");
  const std::vector<LoadedTensor> second = Model();
  ASSERT_THAT(second, SizeIs(4));
  folder_ = std::filesystem::path(folder_).parent_path();
  ExpectSame(Model("first"), second);
}

// The data are 2 x 2 images instead of 4 features.
TEST_F(TrainingTest, ConvolutionModelsGiveTheSameBitsOnEveryRunToo) {
  WriteJob({{"model {", "model {\n  input { height: 2 width: 2 }"},
            {"dense { units: 16 } }", "conv2d { filters: 16 kernel: 2 padding: 1 } } layers { batch_norm {} }"},
            {"relu {} }",
             "relu {} } layers { residual { layers { conv2d { filters: 16 kernel: 1 } } } } "
             "layers { average_pool { kernel: 2 stride: 1 } }"}});
  const Summary summary = Learn({"--workers", "2"}, "first");
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.9);
  const std::vector<LoadedTensor> first = Model("first");
  ASSERT_THAT(first, SizeIs(10));
  Train({"--workers", "2"}, "second");
  ExpectSame(first, Model("second"));
}

// Example i has only feature i and label 1, and weights start at zero. A first visit has gradient -2 and leaves the
// weight at 2 * 0.25 = 0.5; a second visit would bring it to 0.75.
TEST_F(TrainingTest, EveryExampleIsSeenExactlyOnceInAnEpoch) {
  std::string data;
  for (int i = 1; i <= 61; ++i) absl::StrAppend(&data, "1 ", i, ":1\n");
  Write("train.libsvm", data);
  Write("job.textproto", R"(name: "once"
data { train { libsvm { path: "train.libsvm" features: 61 } } }
model {
  layers { dense { units: 1 no_bias: true initializer { zeros {} } } }
  loss { mean_squared_error {} }
}
training { epochs: 1 batch_size: 1 }
optimizer { sgd { learning_rate: 0.25 } }
policy { async {} }
)");
  for (int workers : {1, 3}) {
    const std::string run = absl::StrCat("run", workers);
    Train({"--workers", absl::StrCat(workers)}, run);
    const std::vector<LoadedTensor> model = Model(run);
    ASSERT_THAT(model, SizeIs(1));
    EXPECT_THAT(model[0].values, SizeIs(61));
    EXPECT_THAT(model[0].values, Each(0.5));
  }
}

// 3 examples for 4 workers: one has none, and the step equals that of one worker with all three.
TEST_F(TrainingTest, AWorkerWithoutExamplesKeepsStepInSync) {
  WriteJob({{"batch_size: 8", "batch_size: 1"}}, 3);
  const Summary four = Learn({"--workers", "4"}, "four");
  WriteJob({{"batch_size: 8", "batch_size: 3"}}, 3);
  const Summary one = Learn({"--workers", "1"}, "one");
  EXPECT_EQ(four.examples, 9);
  EXPECT_EQ(four.steps, 3);
  EXPECT_EQ(one.steps, 3);
  const std::vector<LoadedTensor> of_four = Model("four"), of_one = Model("one");
  ASSERT_THAT(of_four, SizeIs(of_one.size()));
  for (size_t i = 0; i < of_one.size(); ++i) {
    EXPECT_THAT(of_four[i].values, Pointwise(FloatNear(1e-6), of_one[i].values)) << of_one[i].name;
  }
}

TEST_F(TrainingTest, Tf32OnTheCpuIsFp32AndSaidSo) {
  WriteJob();
  Train({}, "fp32");
  const Summary summary = Learn({"--precision", "tf32"}, "tf32");
  EXPECT_EQ(summary.precision, "tf32");
  EXPECT_THAT(Read("tf32/logs/worker-0.log"),
              HasSubstr("precision tf32: this device computes in fp32, which is more exact\n"));
  ExpectSame(Model("fp32"), Model("tf32"));
}

TEST_F(TrainingTest, HalfPrecisionIsRefusedOnTheCpuWithTheWayOut) {
  WriteJob({{"batch_size: 8", "batch_size: 8 precision: FP16"}});
  ChildProcess launch = Launch({});
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 2");
  EXPECT_THAT(launch.last_line(), HasSubstr("cpu device: got precision fp16, want fp32: use a GPU (--device cuda), or "
                                            "--precision fp32"));
}

// The quick start's example, for one epoch instead of all.
class QuickstartTest : public TrainingTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(QuickstartTest, LearnsWithinOneEpoch) {
  if (!WriteExample("fashion_mnist.textproto", {{"epochs: 12", "epochs: 1"}})) GTEST_SKIP() << kNoData;
  const Summary summary = Learn({"--servers", "2", "--workers", "2", "--mode", GetParam()});
  EXPECT_EQ(summary.examples, 60000);
  EXPECT_TRUE(std::isfinite(summary.train_loss));
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.80);
}

INSTANTIATE_TEST_SUITE_P(Modes, QuickstartTest, ::testing::Values("sync", "async"),
                         [](const auto& mode) { return mode.param; });

// The convolution example, for one epoch on the 10,000 test images instead of the 60,000 training images.
TEST_F(TrainingTest, ConvolutionExampleLearns) {
  if (!WriteExample("fashion_mnist_cnn.textproto", {{"epochs: 8", "epochs: 1"}, {"train-", "t10k-"}}))
    GTEST_SKIP() << kNoData;
  const Summary summary = Learn({"--workers", "2"});
  EXPECT_EQ(summary.examples, 10000);
  // Before the first step the loss is ln 10 = 2.3 or more.
  EXPECT_LT(summary.test_loss.value_or(9), 0.7);
  EXPECT_GE(summary.test_accuracy.value_or(0), 0.75);
}

}  // namespace
}  // namespace ballast
