// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/run/metrics_writer.h"
#include "common/run/run_folder.h"
#include "common/run/summary.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace ballast
