// SPDX-License-Identifier: Apache-2.0
#include "common/run/summary.h"

#include <gmock/gmock.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

Summary Example() {
  return {.job = "fashion",
          .mode = "sync",
          .quorum = 2,
          .codec = "int8",
          .value_codec = "fp32",
          .precision = "fp16",
          .servers = 2,
          .workers = 3,
          .epochs = 5,
          .steps = 4690,
          .examples = 300000,
          .seconds = 31.5,
          .samples_per_second = 9523.75,
          .train_loss = 0.25,
          .train_loss_epoch = 5,
          .train_loss_examples = 60000,
          .test_loss = 0.375,
          .test_accuracy = 0.8875,
          .test_auc = 0.78125,
          .bayes_auc = 0.8125,
          .log_loss = 0.375,
          .calibration = 1.0625,
          .rows = 123456,
          .table_bytes = 7654321,
          .learning_rate = 0.5,
          .max_staleness = 3,
          .mean_staleness = 1.25,
          .staleness = {{5, 2, 1}, 1.25, 3},
          .dropped = 4,
          .wait_share = 0.125,
          .wait_microseconds = {{7, 0, 1}, 2.5, 2},
          .caused_wait_seconds = {0, 1.5},
          .server_seconds = 30.5,
          .bytes_sent = 1000,
          .bytes_received = 4000,
          .gradient_bytes = 1000,
          .bytes_sent_per_step = 10.5,
          .bytes_received_per_step = 40.5,
          .skipped_steps = 6,
          .loss_scale = 32768,
          .memory = {10, 20, 30, 40, 50, 5},
          .gpu_peak_bytes = {700, 800},
          .restarts = 3,
          .workers_lost = 2,
          .examples_repeated = 480,
          .pushes_lost = 0,
          .pushes_duplicated = 0,
          .pushes_lost_by_shard = {0, 0},
          .run_dir = "runs/a",
          .best_epoch = 4,
          .stopped_early = true,
          .interrupted = false,
          .device = "cpu",
          .version = "0.1.0"};
}

TEST(SummaryTest, IsOneLineWithTheKeysThatScriptsReadInThisOrder) {
  EXPECT_EQ(SummaryToJson(Example()),
            R"({"job":"fashion","mode":"sync","quorum":2,"steps_ahead":null,"local_steps":null,)"
            R"("codec":"int8","value_codec":"fp32","precision":"fp16","servers":2,"workers":3,"epochs":5,"steps":4690,)"
            R"("examples":300000,"seconds":31.5,"samples_per_second":9523.75,"train_loss":0.25,)"
            R"("train_loss_epoch":5,"train_loss_examples":60000,)"
            R"("test_loss":0.375,"test_accuracy":0.8875,"test_auc":0.78125,"bayes_auc":0.8125,)"
            R"("log_loss":0.375,"calibration":1.0625,"rows":123456,"table_bytes":7654321,"learning_rate":0.5,)"
            R"("max_staleness":3,)"
            R"("mean_staleness":1.25,"staleness":{"buckets":[5,2,1],"mean":1.25,"max":3},"dropped":4,)"
            R"("wait_share":0.125,"wait_microseconds":{"buckets":[7,0,1],"mean":2.5,"max":2},)"
            R"("caused_wait_seconds":[0.0,1.5],)"
            R"("server_seconds":30.5,)"
            R"("bytes_sent":1000,"bytes_received":4000,"gradient_bytes":1000,"bytes_sent_per_step":10.5,)"
            R"("bytes_received_per_step":40.5,"skipped_steps":6,"loss_scale":32768.0,)"
            R"("memory":{"weights":10,"gradients":20,"activations":30,"workspace":40,"staging":50,"pinned":5},)"
            R"("gpu_peak_bytes":[700,800],)"
            R"("restarts":3,"workers_lost":2,"examples_repeated":480,"pushes_lost":0,"pushes_duplicated":0,)"
            R"("pushes_lost_by_shard":[0,0],)"
            R"("run_dir":"runs/a","best_epoch":4,"stopped_early":true,"interrupted":false,)"
            R"("device":"cpu","version":"0.1.0"})");
}

TEST(SummaryTest, WithoutATestSetTheKeysAreNull) {
  Summary summary = Example();
  summary.test_loss.reset();
  summary.test_accuracy.reset();
  EXPECT_THAT(SummaryToJson(summary), HasSubstr(R"("test_loss":null,"test_accuracy":null)"));
  EXPECT_FALSE(SummaryFromJson(SummaryToJson(summary)).value().test_accuracy.has_value());
}

TEST(SummaryTest, WithoutTablesOrFiguresOfClicksTheirKeysAreNull) {
  const Summary none;
  EXPECT_THAT(SummaryToJson(none),
              HasSubstr(R"("test_auc":null,"bayes_auc":null,"log_loss":null,"calibration":null,"rows":null,)"
                        R"("table_bytes":null,)"));
  const auto read = SummaryFromJson(SummaryToJson(none));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->test_auc, std::nullopt);
  EXPECT_EQ(read->rows, std::nullopt);
  EXPECT_EQ(read->table_bytes, std::nullopt);
}

TEST(SummaryTest, ReadsBackWhatWasWritten) {
  const std::string path = testing::TempDir() + "/summary_test.json";
  Summary summary = Example();
  summary.interrupted = true;
  summary.run_dir = "runs/\"quoted\" \\ \n";
  summary.seconds = 0.1;
  ASSERT_TRUE(WriteSummary(path, summary).ok());
  const Summary read = ReadSummary(path).value();
  EXPECT_EQ(SummaryToJson(read), SummaryToJson(summary));
  EXPECT_EQ(read.run_dir, "runs/\"quoted\" \\ \n");
  EXPECT_EQ(read.seconds, 0.1);
  EXPECT_TRUE(read.interrupted);
}

TEST(SummaryTest, WithoutLossScalingItsScaleIsNull) {
  Summary summary = Example();
  summary.loss_scale.reset();
  EXPECT_THAT(SummaryToJson(summary), HasSubstr(R"("loss_scale":null)"));
  EXPECT_EQ(SummaryFromJson(SummaryToJson(summary)).value().loss_scale, std::nullopt);
}

TEST(SummaryTest, NanLossReadsBackAsNan) {
  Summary summary = Example();
  summary.train_loss = std::nan("");
  EXPECT_TRUE(std::isnan(SummaryFromJson(SummaryToJson(summary)).value().train_loss));
}

// Returns the error of reading the example with `from` replaced.
std::string Fault(const char* from, const char* to) {
  const absl::Status status = SummaryFromJson(absl::StrReplaceAll(SummaryToJson(Example()), {{from, to}})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(SummaryTest, NamesTheKeyThatIsMissingOrWrong) {
  EXPECT_THAT(Fault("\"steps\"", "\"stops\""), HasSubstr("\"steps\" is missing"));
  EXPECT_THAT(Fault(":4690", ":\"many\""), HasSubstr("\"steps\" is \"many\", want a count"));
  EXPECT_THAT(Fault(":123456", ":-1"), HasSubstr("\"rows\" is -1, want a count"));
}

TEST(SummaryTest, ReadsWhatAnEarlierReleaseWrote) {
  const auto summary =
      SummaryFromJson(
          R"({"job":"fashion","mode":"sync","servers":2,"workers":3,"epochs":5,"steps":4690,"examples":300000,)"
          R"("seconds":31.5,"samples_per_second":9523.75,"train_loss":0.25,"test_loss":0.375,"test_accuracy":0.8875,)"
          R"("run_dir":"runs/a","interrupted":false,"device":"cpu","version":"0.1.0"})")
          .value();
  EXPECT_EQ(summary.codec, "");
  EXPECT_TRUE(summary.staleness.buckets.empty());
  EXPECT_EQ(summary.precision, "");
  EXPECT_EQ(summary.loss_scale, std::nullopt);
  EXPECT_EQ(summary.test_auc, std::nullopt);
  EXPECT_EQ(summary.rows, std::nullopt);
}

TEST(SummaryTest, ReadsStepsAheadUnderItsOldName) {
  Summary summary = Example();
  summary.mode = "bounded";
  summary.steps_ahead = 4;
  const std::string json = SummaryToJson(summary);
  EXPECT_EQ(SummaryFromJson(absl::StrReplaceAll(json, {{"steps_ahead", "staleness_bound"}}))->steps_ahead, 4);
  EXPECT_EQ(SummaryFromJson(json)->steps_ahead, 4);
}

TEST(SummaryTest, NamesADistributionThatIsWrong) {
  EXPECT_EQ(Fault("[5,2,1]", "[5,-2,1]"), "\"staleness\": buckets are not a list of counts");
  EXPECT_EQ(Fault("[5,2,1]", "[5,9223372036854775807]"), "\"staleness\": buckets are not a list of counts");
  const std::string many = absl::StrCat("[", absl::StrJoin(std::vector<int>(64, 1), ","), "]");
  EXPECT_EQ(Fault("[5,2,1]", many.c_str()), "\"staleness\" has 64 buckets, want at most 63");
  EXPECT_EQ(Fault("{\"buckets\":[5,2,1],\"mean\":1.25,\"max\":3}", "7"),
            "\"staleness\" is not an object, want buckets, mean and max");
}

TEST(SummaryTest, NamesTheUseOfMemoryThatIsWrong) {
  EXPECT_THAT(Fault("\"staging\":50", "\"staging\":-1"), HasSubstr("\"staging\" is -1, want a count"));
}

TEST(SummaryTest, ErrorNamesTheFile) {
  const std::string path = testing::TempDir() + "/summary_test_cut.json";
  ASSERT_TRUE(WriteFileAtomically(path, {"{\"job\":"}).ok());
  EXPECT_THAT(ReadSummary(path).status().message(), HasSubstr(path));
  EXPECT_EQ(ReadSummary("/nonexistent/summary.json").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ballast
