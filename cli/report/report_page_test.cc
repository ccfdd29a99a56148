// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
                            .test_loss = 0.5,
                            .test_accuracy = 0.875,
                            .memory = {.weights = 1 << 20, .gradients = 1 << 20, .activations = 2 << 20},
                            .run_dir = "runs/fashion-1",
                            .device = "cpu",
                            .version = "0.1.0"};
  return content;
}

TEST(ReportPageTest, ShowsTheRunAndItsFigures) {
  const std::string html = RenderReport(Example());
  EXPECT_THAT(html, HasSubstr("<h1>fashion</h1><span class=\"badge good\">finished</span>"));
  EXPECT_THAT(html, HasSubstr("<span>async</span><span>2 servers</span><span>1 worker</span><span>cpu</span>"));
  EXPECT_THAT(html, HasSubstr("<dt>Test accuracy</dt><dd>87.50%</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Training time</dt><dd>1 min 32 s</dd><dd class=\"more\">1 epoch, 20 steps</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Samples per second</dt><dd>13,914</dd>"));
  EXPECT_THAT(html,
              HasSubstr("<dt>Memory of worker 0</dt><dd>4.0 MiB</dd><dd class=\"more\">weights 1.0 MiB, gradients "
                        "1.0 MiB, activations 2.0 MiB</dd>"));
  EXPECT_THAT(html, Not(HasSubstr("class=\"note\"")));
}

TEST(ReportPageTest, SaysInWhichModeAndWhatWentOverTheWire) {
  ReportContent content = Example();
  content.summary->mode = "bounded";
  content.summary->staleness_bound = 4;
  content.summary->codec = "int8";
  content.summary->bytes_sent = 2048;
  const std::string html = RenderReport(content);
  EXPECT_THAT(html, HasSubstr("<span>bounded, staleness 4, codec int8</span>"));
  EXPECT_THAT(html, HasSubstr("<h2>Between workers and servers</h2>"));
  EXPECT_THAT(html, HasSubstr("<td>2.0 KiB as int8</td>"));
}

TEST(ReportPageTest, HoldsChartsTableAndJobFile) {
  const std::string html = RenderReport(Example());
  EXPECT_THAT(html, HasSubstr("<span class=\"title\">Loss</span>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"title\">Test accuracy</span>"));
  EXPECT_THAT(html, HasSubstr("<h2>Epochs</h2>"));
  EXPECT_THAT(html, HasSubstr("<summary>Job file</summary><pre>name: &quot;fashion&quot;  # 1 &lt; 2\n</pre>"));
}

TEST(ReportPageTest, NeedsNothingButItself) {
  const std::string html = RenderReport(Example());
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  EXPECT_THAT(html, Not(HasSubstr("src=\"")));
  EXPECT_THAT(html, Not(HasSubstr("@import")));
  EXPECT_THAT(html, Not(HasSubstr("url(")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
}

TEST(ReportPageTest, InterruptedRunSaysSo) {
  ReportContent content = Example();
  content.summary->interrupted = true;
  const std::string html = RenderReport(content);
  EXPECT_THAT(html, HasSubstr("<span class=\"badge warn\">interrupted</span>"));
  EXPECT_THAT(html, HasSubstr("The run was interrupted before its last epoch"));
}

TEST(ReportPageTest, SaysWhatDiedAndCameBack) {
  ReportContent content = Example();
  EXPECT_THAT(RenderReport(content), Not(HasSubstr("Processes died")));
  content.summary->workers_lost = 1;
  content.summary->restarts = 2;
  content.summary->examples_repeated = 480;
  EXPECT_THAT(RenderReport(content),
              HasSubstr("1 worker lost, processes restarted: 2, examples repeated at most: 480."));
}

TEST(ReportPageTest, WithoutASummaryTheMetricsSpeak) {
  ReportContent content = Example();
  content.summary.reset();
  const std::string html = RenderReport(content);
  EXPECT_THAT(html, HasSubstr("<h1>fashion-1</h1><span class=\"badge warn\">unfinished</span>"));
  EXPECT_THAT(html, HasSubstr("There is no summary.json"));
  EXPECT_THAT(html, HasSubstr("<dt>Test accuracy</dt><dd>87.50%</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Training time</dt><dd>5.0 s</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Samples per second</dt><dd>256</dd>"));
}

TEST(ReportPageTest, WithoutATestSetTrainLossComesFirst) {
  ReportContent content = Example();
  content.metrics.test.clear();
  content.summary->test_loss.reset();
  content.summary->test_accuracy.reset();
  const std::string html = RenderReport(content);
  EXPECT_THAT(html, HasSubstr("<dl class=\"figures\">\n<div><dt>Train loss</dt><dd>1.5</dd>"));
  EXPECT_THAT(html, Not(HasSubstr("Test accuracy")));
}

TEST(ReportPageTest, RegressionShowsItsTestLoss) {
  ReportContent content = Example();
  content.summary->test_accuracy.reset();
  EXPECT_THAT(RenderReport(content), HasSubstr("<dt>Test loss</dt><dd>0.5</dd>"));
}

TEST(ReportPageTest, EmptyRunIsAPageThatSaysSo) {
  ReportContent content;
  content.run_dir = "runs/empty";
  const std::string html = RenderReport(content);
  EXPECT_THAT(html, HasSubstr("metrics.jsonl contains no metrics"));
  EXPECT_THAT(html, Not(HasSubstr("<figure")));
  EXPECT_THAT(html, HasSubstr("</html>"));
}

TEST(ReportPageTest, SaysWhichLinesItSkipped) {
  ReportContent content = Example();
  content.metrics.cut_off = true;
  content.metrics.malformed_lines = {2, 3, 5, 8, 13, 21};
  const std::string html = RenderReport(content);
  EXPECT_THAT(html, HasSubstr("The last line of metrics.jsonl is incomplete and was skipped."));
  EXPECT_THAT(html, HasSubstr("6 lines of metrics.jsonl could not be read and were skipped: 2, 3, 5, 8, 13, …"));
}

TEST(ReportPageTest, DivergedRunIsAPageWithoutNan) {
  ReportContent content = Example();
  content.metrics.train[1].loss = std::nan("");
  content.summary->train_loss = std::nan("");
  const std::string html = RenderReport(content);
  EXPECT_THAT(html, HasSubstr("<dt>Train loss</dt><dd>not finite</dd>"));
  EXPECT_THAT(html, Not(HasSubstr("nan%")));
}

TEST(ReportPageTest, NamesAreEscaped) {
  ReportContent content = Example();
  content.summary->job = "<script>alert(1)</script>";
  content.summary->device = "<img>";
  content.job_text = "</pre><script>";
  content.run_dir = "runs/<i>";
  const std::string html = RenderReport(content);
  EXPECT_THAT(html, HasSubstr("<h1>&lt;script&gt;alert(1)&lt;/script&gt;</h1>"));
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("<img>")));
  EXPECT_THAT(html, Not(HasSubstr("</pre><script>")));
  EXPECT_THAT(html, Not(HasSubstr("<i>")));
}

}  // namespace
}  // namespace ballast
