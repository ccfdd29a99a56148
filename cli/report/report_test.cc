// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "cli/command/command.h"
#include "common/run/metrics.h"
#include "common/run/run_folder.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ReportContent Example() {
  ReportContent content;
  content.run_dir = "runs/fashion-1";
  content.job_text = "name: \"fashion\"  # 1 < 2\n";
  content.metrics.train = {
      {.epoch = 1, .step = 10, .examples = 640, .seconds = 2, .loss = 2, .samples_per_second = 320},
      {.epoch = 1, .step = 20, .examples = 1280, .seconds = 4, .loss = 1, .samples_per_second = 320}};
  content.metrics.test = {{.epoch = 1, .step = 20, .seconds = 5, .loss = 0.5, .accuracy = 0.875}};
  content.summary = Summary{.job = "fashion",
                            .mode = "async",
                            .servers = 2,
                            .workers = 1,
                            .epochs = 1,
                            .steps = 20,
                            .examples = 1280,
                            .seconds = 92,
                            .samples_per_second = 13914,
                            .train_loss = 1.5,
                            .train_loss_epoch = 1,
                            .test_loss = 0.5,
                            .test_accuracy = 0.875,
                            .memory = {.weights = 1 << 20, .gradients = 1 << 20, .activations = 2 << 20},
                            .run_dir = "runs/fashion-1",
                            .device = "cpu",
                            .version = "0.1.0"};
  return content;
}

class ReportPageTest : public testing::Test {
 protected:
  std::string Html() const { return RenderReport(content_); }

  ReportContent content_ = Example();
};

TEST_F(ReportPageTest, ShowsTheRunAndItsFigures) {
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("<h1>fashion</h1><span class=\"badge good\">finished</span>"));
  EXPECT_THAT(html, HasSubstr("<span>async</span><span>2 servers</span><span>1 worker</span><span>cpu</span>"));
  EXPECT_THAT(html, HasSubstr("<dt>Test accuracy</dt><dd>87.50%</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Training time</dt><dd>1 min 32 s</dd><dd class=\"more\">1 epoch, 20 steps</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Train loss</dt><dd>1.5</dd><dd class=\"more\">mean over epoch 1; test 0.5</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Samples per second</dt><dd>13,914</dd><dd class=\"more\">1,280 examples in all of "
                              "the training time</dd>"));
  EXPECT_THAT(html,
              HasSubstr("<dt>Memory of worker 0</dt><dd>4.0 MiB</dd><dd class=\"more\">weights 1.0 MiB, gradients "
                        "1.0 MiB, activations 2.0 MiB</dd>"));
  EXPECT_THAT(html, Not(HasSubstr("class=\"note\"")));
}

TEST_F(ReportPageTest, ClickModelShowsItsAucFirstAndTheBestPossible) {
  content_.metrics.test[0].auc = content_.summary->test_auc = 0.78434;
  content_.summary->log_loss = 0.5;
  EXPECT_THAT(Html(), HasSubstr("<dl class=\"figures\">\n<div><dt>Test AUC</dt><dd>0.7843</dd>"
                                "<dd class=\"more\">best of the run</dd></div>\n"));
  EXPECT_THAT(Html(), HasSubstr("<dt>Log loss</dt><dd>0.5</dd><dd class=\"more\"></dd>"));
  EXPECT_THAT(Html(), Not(HasSubstr("<dt>Rows</dt>")));
  content_.summary->bayes_auc = 0.807;
  content_.summary->calibration = 1.25;
  content_.summary->rows = 1234567;
  content_.metrics.test[0].auc = 0.79;
  EXPECT_THAT(Html(),
              HasSubstr("<dt>Test AUC</dt><dd>0.7843 (Bayes 0.8070)</dd><dd class=\"more\">best 0.7900, epoch 1"));
  EXPECT_THAT(Html(), HasSubstr("<dd class=\"more\">calibration 1.25</dd>"));
  EXPECT_THAT(Html(), HasSubstr("<dt>Test accuracy</dt><dd>87.50%</dd><dd class=\"more\"></dd>"));
  EXPECT_THAT(Html(), HasSubstr("<dt>Rows</dt><dd>1,234,567</dd><dd class=\"more\">of all tables, at the end</dd>"));
}

TEST_F(ReportPageTest, AModelThatIsNotTheMostAccurateIsNotCalledTheBest) {
  content_.summary->test_accuracy = 0.75;
  EXPECT_THAT(Html(), HasSubstr("<dd>75.00%</dd><dd class=\"more\">best 87.50%, epoch 1</dd>"));
}

TEST_F(ReportPageTest, SaysThatTheTrainingEndedEarlyAndWhichEpochIsKept) {
  content_.summary->stopped_early = true;
  content_.summary->best_epoch = 7;
  EXPECT_THAT(Html(), HasSubstr("The training ended early, because the test metric did not improve."));
  EXPECT_THAT(Html(), HasSubstr("The model and the test results are those of epoch 7, the best."));
}

TEST_F(ReportPageTest, SaysInWhichModeAndWhatWentOverTheWire) {
  content_.summary->mode = "bounded";
  content_.summary->steps_ahead = 4;
  content_.summary->codec = "int8";
  content_.summary->bytes_sent = 2048;
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("<span>bounded, steps ahead 4, codec int8</span>"));
  EXPECT_THAT(html, HasSubstr("<h2>Between workers and servers</h2>"));
  EXPECT_THAT(html, HasSubstr("<td>2.0 KiB as int8</td>"));
}

TEST_F(ReportPageTest, HoldsChartsTableAndJobFile) {
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("<span class=\"title\">Loss</span>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"title\">Test accuracy</span>"));
  EXPECT_THAT(html, HasSubstr("<h2>Epochs</h2>"));
  EXPECT_THAT(html, HasSubstr("<summary>Job file</summary><pre>name: &quot;fashion&quot;  # 1 &lt; 2\n</pre>"));
}

TEST_F(ReportPageTest, NeedsNothingButItself) {
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  EXPECT_THAT(html, Not(HasSubstr("src=\"")));
  EXPECT_THAT(html, Not(HasSubstr("@import")));
  EXPECT_THAT(html, Not(HasSubstr("url(")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
}

TEST_F(ReportPageTest, InterruptedRunSaysSo) {
  content_.summary->interrupted = true;
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("<span class=\"badge warn\">interrupted</span>"));
  EXPECT_THAT(html, HasSubstr("The run was interrupted before its last epoch"));
}

TEST_F(ReportPageTest, SaysWhatDiedAndCameBack) {
  EXPECT_THAT(Html(), Not(HasSubstr("Processes died")));
  content_.summary->workers_lost = 1;
  content_.summary->restarts = 2;
  content_.summary->examples_repeated = 480;
  EXPECT_THAT(Html(), HasSubstr("1 worker lost, processes restarted: 2, examples repeated at most: 480."));
}

TEST_F(ReportPageTest, WithoutASummaryTheMetricsSpeak) {
  content_.summary.reset();
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("<h1>fashion-1</h1><span class=\"badge warn\">unfinished</span>"));
  EXPECT_THAT(html, HasSubstr("There is no summary.json"));
  EXPECT_THAT(html, HasSubstr("<dt>Test accuracy</dt><dd>87.50%</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Training time</dt><dd>5.0 s</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Samples per second</dt><dd>256</dd>"));
}

TEST_F(ReportPageTest, WithoutATestSetTrainLossComesFirst) {
  content_.metrics.test.clear();
  content_.summary->test_loss.reset();
  content_.summary->test_accuracy.reset();
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("<dl class=\"figures\">\n<div><dt>Train loss</dt><dd>1.5</dd>"));
  EXPECT_THAT(html, Not(HasSubstr("Test accuracy")));
}

TEST_F(ReportPageTest, RegressionShowsItsTestLoss) {
  content_.summary->test_accuracy.reset();
  EXPECT_THAT(Html(), HasSubstr("<dt>Test loss</dt><dd>0.5</dd>"));
}

TEST_F(ReportPageTest, EmptyRunIsAPageThatSaysSo) {
  content_ = {};
  content_.run_dir = "runs/empty";
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("metrics.jsonl contains no metrics"));
  EXPECT_THAT(html, Not(HasSubstr("<figure")));
  EXPECT_THAT(html, HasSubstr("</html>"));
}

TEST_F(ReportPageTest, SaysWhichLinesItSkipped) {
  content_.metrics.cut_off = true;
  content_.metrics.malformed_lines = {2, 3, 5, 8, 13, 21};
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("The last line of metrics.jsonl is incomplete and was skipped."));
  EXPECT_THAT(html, HasSubstr("6 lines of metrics.jsonl could not be read and were skipped: 2, 3, 5, 8, 13, …"));
}

TEST_F(ReportPageTest, DivergedRunIsAPageWithoutNan) {
  content_.metrics.train[1].loss = std::nan("");
  content_.summary->train_loss = std::nan("");
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("<dt>Train loss</dt><dd>not finite</dd>"));
  EXPECT_THAT(html, Not(HasSubstr("nan%")));
}

TEST_F(ReportPageTest, NamesAreEscaped) {
  content_.summary->job = "<script>alert(1)</script>";
  content_.summary->device = "<img>";
  content_.job_text = "</pre><script>";
  content_.run_dir = "runs/<i>";
  const std::string html = Html();
  EXPECT_THAT(html, HasSubstr("<h1>&lt;script&gt;alert(1)&lt;/script&gt;</h1>"));
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("<img>")));
  EXPECT_THAT(html, Not(HasSubstr("</pre><script>")));
  EXPECT_THAT(html, Not(HasSubstr("<i>")));
}

RunFolder NewFolder(const std::string& name) {
  const std::string path = testing::TempDir() + "/report_test_" + name;
  std::filesystem::remove_all(path);
  return RunFolder::Create(path).value();
}

TEST(ReportTest, ShowsWhatTheRunLeft) {
  const RunFolder folder = NewFolder("whole");
  MetricsWriter writer = MetricsWriter::Open(folder.metrics()).value();
  ASSERT_TRUE(writer.Write(TrainMetrics{.epoch = 1, .step = 10, .loss = 2}).ok());
  ASSERT_TRUE(writer.Write(TestMetrics{.epoch = 1, .step = 10, .loss = 1, .accuracy = 0.75}).ok());
  ASSERT_TRUE(WriteSummary(folder.summary(), {.job = "fashion", .mode = "sync", .test_accuracy = 0.75}).ok());
  ASSERT_TRUE(WriteFileAtomically(folder.job(), {"seed: 42"}).ok());

  const absl::Status status = WriteReport(folder.path());
  ASSERT_TRUE(status.ok()) << status;
  const std::string html = ReadFile(folder.report()).value();
  EXPECT_THAT(html, HasSubstr("<h1>fashion</h1>"));
  EXPECT_THAT(html, HasSubstr("<dd>75.00%</dd>"));
  EXPECT_THAT(html, HasSubstr("<pre>seed: 42</pre>"));
  EXPECT_THAT(html, HasSubstr("<td>10</td><td>2</td><td>1</td>"));
}

TEST(ReportTest, MayBeWrittenAgainWhileTheRunGoesOn) {
  const RunFolder folder = NewFolder("again");
  MetricsWriter writer = MetricsWriter::Open(folder.metrics()).value();
  ASSERT_TRUE(WriteReport(folder.path()).ok());
  ASSERT_TRUE(writer.Write(TestMetrics{.epoch = 1, .step = 10, .loss = 1, .accuracy = 0.25}).ok());
  ASSERT_TRUE(WriteReport(folder.path()).ok());
  EXPECT_THAT(ReadFile(folder.report()).value(), HasSubstr("25.00%"));
}

TEST(ReportTest, FolderWithoutARunIsNotFound) {
  const RunFolder folder = NewFolder("none");
  const absl::Status status = WriteReport(folder.path());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(folder.path() + ": has neither metrics.jsonl nor summary.json"));
  EXPECT_FALSE(std::filesystem::exists(folder.report()));
}

TEST(ReportTest, DamagedSummaryIsAnErrorThatNamesIt) {
  const RunFolder folder = NewFolder("damaged");
  ASSERT_TRUE(WriteFileAtomically(folder.summary(), {"{}"}).ok());
  const absl::Status status = WriteReport(folder.path());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("summary.json: \"job\" is missing"));
}

TEST(ReportTest, MetricsThatCannotBeReadAreAnErrorNotAnEmptyReport) {
  const RunFolder folder = NewFolder("unreadable");
  std::filesystem::create_directory(folder.metrics());
  EXPECT_THAT(WriteReport(folder.path()).message(), HasSubstr("metrics.jsonl: not a regular file"));
}

class PlotCommandTest : public testing::Test {
 protected:
  RunFolder NewRun(const std::string& name) {
    const RunFolder folder = NewFolder("plot_" + name);
    EXPECT_TRUE(WriteFileAtomically(folder.metrics(), {""}).ok());
    return folder;
  }

  int Run(const std::vector<std::string>& args) { return PlotCommand(args, out_, err_); }

  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(PlotCommandTest, WritesTheReportAndPrintsItsPath) {
  const RunFolder folder = NewRun("plain");
  EXPECT_EQ(Run({folder.path() + "/"}), 0);
  EXPECT_EQ(out_.str(), folder.report() + "\n");
  EXPECT_TRUE(std::filesystem::exists(folder.report()));
  EXPECT_EQ(err_.str(), "");
}

TEST_F(PlotCommandTest, JsonIsOneObject) {
  const RunFolder folder = NewRun("json");
  EXPECT_EQ(Run({"--json", folder.path()}), 0);
  EXPECT_EQ(out_.str(), "{\"run_dir\":\"" + folder.path() + "\",\"report\":\"" + folder.report() + "\"}\n");
}

TEST_F(PlotCommandTest, HelpGoesToStandardOutput) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("usage: ballast plot RUN_DIR"));
}

TEST_F(PlotCommandTest, WrongArgumentsAreExitCodeTwoAndNamed) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(err_.str(), EndsWith("error: plot: RUN_DIR is missing\n"));
  EXPECT_EQ(Run({"--jsn", "a"}), 2);
  EXPECT_THAT(err_.str(), EndsWith("error: unknown flag --jsn; did you mean \"--json\"?\n"));
  EXPECT_EQ(Run({"a", "--out", ""}), 2);
  EXPECT_THAT(err_.str(), EndsWith("error: flag --out: got \"\", want a file\n"));
  EXPECT_EQ(out_.str(), "");
}

TEST_F(PlotCommandTest, ComparesSeveralRunsInTheFileThatIsNamed) {
  const RunFolder one = NewRun("one"), two = NewRun("two");
  const std::string path = ::testing::TempDir() + "/compared.html";
  EXPECT_EQ(Run({one.path(), two.path(), "/nonexistent/run", "--out", path}), 0) << err_.str();
  EXPECT_EQ(out_.str(), path + "\n");
  EXPECT_THAT(err_.str(), HasSubstr("skipped: run directory /nonexistent/run: "));
  EXPECT_THAT(ReadFile(path).value_or(""), HasSubstr("<td>report_test_plot_two</td>"));
}

TEST_F(PlotCommandTest, WritesOneReportToTheFileThatIsNamed) {
  const std::string path = ::testing::TempDir() + "/single.html";
  EXPECT_EQ(Run({NewRun("single").path(), "--out=" + path}), 0) << err_.str();
  EXPECT_THAT(ReadFile(path).value_or(""), HasSubstr("<h1>report_test_plot_single</h1>"));
}

TEST_F(PlotCommandTest, SeveralDirectoriesWithoutARunAreExitCodeTwo) {
  EXPECT_EQ(Run({"/nonexistent/a", "/nonexistent/b", "--out", ::testing::TempDir() + "/none.html"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("no run can be compared; run directory /nonexistent/a: "));
}

TEST_F(PlotCommandTest, FolderWithoutARunIsExitCodeTwo) {
  EXPECT_EQ(Run({"/nonexistent/run"}), 2);
  EXPECT_EQ(err_.str(), "error: run directory /nonexistent/run: has neither metrics.jsonl nor summary.json\n");
}

TEST_F(PlotCommandTest, ReportThatCannotBeWrittenIsExitCodeOne) {
  const RunFolder folder = NewRun("unwritable");
  std::filesystem::create_directories(folder.report() + "/in_the_way");
  EXPECT_EQ(Run({folder.path()}), 1);
  EXPECT_THAT(err_.str(), StartsWith("error: "));
  EXPECT_THAT(err_.str(), HasSubstr("report.html"));
}

}  // namespace
}  // namespace ballast
