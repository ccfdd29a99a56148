// SPDX-License-Identifier: Apache-2.0
#include "cli/report/comparison.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

ComparedRun Example(const std::string& name, float rate, double accuracy) {
  ComparedRun run;
  run.name = name;
  run.info.directory = "runs/" + name;
  run.info.state = RunState::kFinished;
  run.info.summary = {.job = "small", .workers = 2, .epochs = 1, .steps = 20, .test_accuracy = accuracy};
  run.info.job.emplace();
  run.info.job->set_name("small");
  run.info.job->mutable_model()->add_layers()->mutable_relu();
  run.info.job->mutable_optimizer()->mutable_sgd()->set_learning_rate(rate);
  run.metrics.train = {{.epoch = 1, .step = 10, .examples = 640, .seconds = 2, .loss = 2},
                       {.epoch = 1, .step = 20, .examples = 1280, .seconds = 4, .loss = 1}};
  run.metrics.test = {{.epoch = 1, .step = 25, .seconds = 5, .loss = 0.5, .accuracy = accuracy}};
  return run;
}

TEST(JobDifferencesTest, NamesTheFieldsThatDiffer) {
  std::vector<ComparedRun> runs = {Example("a", 0.1, 0.8), Example("b", 0.25, 0.9)};
  EXPECT_THAT(JobDifferences(runs), ElementsAre(Pair("optimizer.sgd.learning_rate", ElementsAre("0.1", "0.25"))));
  runs[1].info.job->mutable_model()->mutable_layers(0)->mutable_dense()->set_units(8);
  runs[1].info.job->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1f);
  EXPECT_THAT(JobDifferences(runs), ElementsAre(Pair("model.layers[0].dense.units", ElementsAre("–", "8")),
                                                Pair("model.layers[0].relu", ElementsAre("{}", "–"))));
}

TEST(JobDifferencesTest, ComparesWithAJobThatIsUnknown) {
  std::vector<ComparedRun> runs = {Example("a", 0.1, 0.8), Example("b", 0.1, 0.9)};
  EXPECT_THAT(JobDifferences(runs), IsEmpty());
  runs[0].info.job.reset();
  EXPECT_THAT(JobDifferences(runs).at("name"), ElementsAre("–", "\"small\""));
}

TEST(ComparisonTest, ShowsEachRunInEachChart) {
  const std::string html = RenderComparison("Both", {Example("first", 0.1, 0.8), Example("second", 0.25, 0.9)});
  EXPECT_THAT(html, HasSubstr("<h1>Both</h1>"));
  for (const char* chart : {"smoothed mean over a batch, over examples", "smoothed mean over a batch, over seconds",
                            "after each epoch, over examples", "after each epoch, over seconds"}) {
    EXPECT_THAT(html, HasSubstr(chart));
  }
  // The test at step 25 came after 1600 examples, as many per step as before.
  EXPECT_THAT(html, HasSubstr("{\"name\":\"first\",\"color\":1,\"faint\":false,\"points\":[[1600.0,0.8]]}"));
  EXPECT_THAT(html, HasSubstr("{\"name\":\"second\",\"color\":2,\"faint\":false,\"points\":[[5.0,0.9]]}"));
}

TEST(ComparisonTest, TabulatesWhatDiffersAndTheResults) {
  std::vector<ComparedRun> runs = {Example("first", 0.1, 0.8), Example("<second>", 0.25, 0.9)};
  EXPECT_THAT(RenderComparison("x", runs), Not(HasSubstr("<th>Workers</th>")));
  // The number is unknown without a summary.
  runs[1].info.summary.workers = 0;
  EXPECT_THAT(RenderComparison("x", runs), Not(HasSubstr("<th>Workers</th>")));
  runs[1].info.summary.workers = 4;
  const std::string html = RenderComparison("x", runs);
  EXPECT_THAT(html, HasSubstr("<th>Run</th><th>State</th><th>optimizer.sgd.learning_rate</th><th>Workers</th>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>&lt;second&gt;</td><td>finished</td><td>0.25</td><td>4</td>"));
  EXPECT_THAT(html, HasSubstr("<td>90.00%</td>"));
}

TEST(ComparisonTest, ShowsTheAucOfClickModels) {
  ComparedRun run = Example("a", 0.1, 0.8);
  EXPECT_THAT(RenderComparison("x", {run}), Not(HasSubstr("Test AUC")));
  run.metrics.test[0].auc = run.info.summary.test_auc = 0.75;
  run.info.summary.bayes_auc = 0.8125;
  const std::string html = RenderComparison("x", {run, Example("b", 0.1, 0.9)});
  EXPECT_THAT(html, HasSubstr("<span class=\"title\">Test AUC</span>"));
  EXPECT_THAT(html, Not(HasSubstr("<span class=\"title\">Test accuracy</span>")));
  EXPECT_THAT(html, HasSubstr("<th>Test accuracy</th><th>Test AUC</th>"));
  EXPECT_THAT(html, HasSubstr("<td>80.00%</td><td>0.7500 (Bayes 0.8125)</td>"));
  EXPECT_THAT(html, HasSubstr("<td>90.00%</td><td>–</td>"));
}

TEST(ComparisonTest, ShowsTheTestLossOfRegressions) {
  ComparedRun run = Example("a", 0.1, 0.8);
  run.metrics.test[0].accuracy.reset();
  const std::string html = RenderComparison("x", {run, run});
  EXPECT_THAT(html, HasSubstr("<span class=\"title\">Test loss</span>"));
  EXPECT_THAT(html, Not(HasSubstr("<span class=\"title\">Test accuracy</span>")));
}

TEST(ComparisonTest, SaysWhyARunFailed) {
  ComparedRun run = Example("a", 0.1, 0.8);
  run.info.state = RunState::kFailed;
  run.info.error = "the loss is <nan>";
  run.metrics = {};
  EXPECT_THAT(RenderComparison("x", {run}), HasSubstr("a failed: the loss is &lt;nan&gt;"));
}

class WriteComparisonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
  }

  std::string Write(const std::string& run, double accuracy) {
    std::filesystem::create_directories(folder_ + "/" + run);
    EXPECT_TRUE(WriteSummary(folder_ + "/" + run + "/summary.json", {.test_accuracy = accuracy}).ok());
    return folder_ + "/" + run;
  }

  std::string folder_;
};

TEST_F(WriteComparisonTest, PutsTheBestRunFirstAndSkipsWhatIsNoRun) {
  const std::string worse = Write("worse", 0.5), better = Write("better", 0.75);
  const auto skipped = WriteComparison("x", {worse, "/nonexistent/run", better}, folder_ + "/all.html");
  ASSERT_TRUE(skipped.ok()) << skipped.status();
  ASSERT_EQ(skipped->size(), 1);
  EXPECT_EQ((*skipped)[0].directory, "/nonexistent/run");
  const std::string html = ReadFile(folder_ + "/all.html").value_or("");
  EXPECT_LT(html.find("<td>better</td>"), html.find("<td>worse</td>"));
}

TEST_F(WriteComparisonTest, NamesRunsOfTheSameNameByTheirPaths) {
  const std::string one = Write("one/run", 0.5), two = Write("two/run", 0.75);
  ASSERT_TRUE(WriteComparison("x", {one, two}, folder_ + "/all.html").ok());
  EXPECT_THAT(ReadFile(folder_ + "/all.html").value_or(""), HasSubstr("<td>" + two + "</td>"));
}

TEST_F(WriteComparisonTest, RefusesIfThereIsNoRun) {
  const absl::Status status = WriteComparison("x", {"/nonexistent/run"}, folder_ + "/all.html").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("/nonexistent/run"));
}

}  // namespace
}  // namespace ballast
