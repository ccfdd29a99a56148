// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_overrides.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <fstream>

namespace ballast {
namespace {

v1::Job Parse(const std::string& text) {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return job;
}

v1::Job Good(const std::string& text, const JobOverrides& overrides, uint32_t workers = 4) {
  const absl::StatusOr<v1::Job> job = Override(Parse(text), overrides, workers);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.value_or(v1::Job());
}

std::string Fault(const std::string& text, const JobOverrides& overrides, uint32_t workers = 4) {
  const absl::Status status = Override(Parse(text), overrides, workers).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

constexpr char kSync[] = "optimizer { adam { learning_rate: 0.25 } } policy { sync { deterministic: true } }";

TEST(JobOverridesTest, WithoutAnyTheJobStaysAsItIs) {
  EXPECT_EQ(Good(kSync, {}).SerializeAsString(), Parse(kSync).SerializeAsString());
}

TEST(JobOverridesTest, TheSameModeKeepsItsOptions) {
  EXPECT_TRUE(Good(kSync, {.mode = "sync"}).policy().sync().deterministic());
}

TEST(JobOverridesTest, PrecisionReplacesTheJobFiles) {
  EXPECT_EQ(Good("training { precision: FP16 }", {.precision = "fp32"}).training().precision(), v1::FP32);
  EXPECT_EQ(Good(kSync, {.precision = "tf32"}).training().precision(), v1::TF32);
  EXPECT_EQ(Good(kSync, {.precision = "bf16"}).training().precision(), v1::BF16);
  EXPECT_EQ(Good(kSync, {.precision = "fp16"}).training().precision(), v1::FP16);
  EXPECT_EQ(Good(kSync, {.durability = "wal_sync"}).durability().mode(), v1::Durability::WAL_SYNC);
  EXPECT_EQ(Good("durability { mode: WAL }", {.durability = "none"}).durability().mode(), v1::Durability::NONE);
  EXPECT_EQ(ToFlags({.durability = "wal"}), (std::vector<std::string>{"--durability", "wal"}));
  EXPECT_EQ(Good("training { precision: FP16 }", {}).training().precision(), v1::FP16);
  EXPECT_EQ(ToFlags({.precision = "bf16"}), (std::vector<std::string>{"--precision", "bf16"}));
}

TEST(JobOverridesTest, UnknownPrecisionIsRefused) {
  EXPECT_EQ(Fault(kSync, {.precision = "bf61"}),
            "flag --precision: got \"bf61\", want fp32, tf32, bf16, fp16; did you mean \"bf16\"?");
  EXPECT_EQ(Fault(kSync, {.durability = "wal_snc"}),
            "flag --durability: got \"wal_snc\", want none, checkpoint, wal, wal_sync, standby; did you mean "
            "\"wal_sync\"?");
  EXPECT_EQ(Fault(kSync, {.precision = "double"}), "flag --precision: got \"double\", want fp32, tf32, bf16, fp16");
}

TEST(JobOverridesTest, AnotherModeReplacesIt) {
  EXPECT_TRUE(Good(kSync, {.mode = "async"}).policy().has_async());
  EXPECT_TRUE(Good("policy { async {} }", {.mode = "sync"}).policy().has_sync());
}

TEST(JobOverridesTest, AnotherModeKeepsTheOptionsThatBothHave) {
  const v1::Job bounded =
      Good("policy { async { scale_by_staleness: true } }", {.mode = "bounded", .steps_ahead = "3"});
  EXPECT_TRUE(bounded.policy().bounded().scale_by_staleness());
  EXPECT_EQ(bounded.policy().bounded().staleness_of(), v1::ConsistencyPolicy::ROW);
  constexpr char kByTable[] = "policy { bounded { scale_by_staleness: true staleness_of: TABLE } }";
  EXPECT_EQ(Good(kByTable, {.mode = "async"}).policy().async().staleness_of(), v1::ConsistencyPolicy::TABLE);
  const v1::Job local = Good(kSync, {.mode = "local_sgd", .local_steps = "8"});
  EXPECT_TRUE(local.policy().local_sgd().deterministic());
  EXPECT_TRUE(Good("policy { accept_non_finite: true sync {} }", {.mode = "async"}).policy().accept_non_finite());
}

TEST(JobOverridesTest, SetsTheModesNumbers) {
  EXPECT_EQ(Good(kSync, {.mode = "bounded", .steps_ahead = "0"}).policy().bounded().steps_ahead(), 0);
  EXPECT_EQ(Good(kSync, {.mode = "bounded", .steps_ahead = "4"}).policy().bounded().steps_ahead(), 4);
  EXPECT_EQ(Good("policy { bounded { steps_ahead: 9 } }", {.steps_ahead = "4"}).policy().bounded().steps_ahead(), 4);
  EXPECT_EQ(Good("policy { bounded { steps_ahead: 9 } }", {.mode = "bounded"}).policy().bounded().steps_ahead(), 9);
  EXPECT_EQ(Good(kSync, {.quorum = "3"}).policy().sync().quorum(), 3);
  EXPECT_TRUE(Good(kSync, {.quorum = "3"}).policy().sync().deterministic());
}

TEST(JobOverridesTest, LocalSgdTakesTheOptimizersRateForTheLocalSteps) {
  const v1::Job job = Good(kSync, {.mode = "local_sgd", .local_steps = "8"});
  EXPECT_EQ(job.policy().local_sgd().local_steps(), 8);
  EXPECT_EQ(job.policy().local_sgd().learning_rate(), 0.25);
  EXPECT_EQ(job.optimizer().sgd().learning_rate(), 1);
}

TEST(JobOverridesTest, AJobOfModeLocalSgdKeepsItsRates) {
  const v1::Job job = Good(
      "optimizer { momentum { learning_rate: 0.5 momentum: 0.9 } } "
      "policy { local_sgd { local_steps: 2 learning_rate: 0.125 } }",
      {.mode = "local_sgd", .local_steps = "8"});
  EXPECT_EQ(job.policy().local_sgd().learning_rate(), 0.125);
  EXPECT_EQ(job.optimizer().momentum().learning_rate(), 0.5);
}

TEST(JobOverridesTest, CodecIsOfGradientsAndAHalfWidthOneOfValuesToo) {
  const auto codec = [](const JobOverrides& overrides) {
    const v1::Codec codec = Good(kSync, overrides).codec();
    return EncodingName(codec.gradients()) + " " + EncodingName(codec.values());
  };
  EXPECT_EQ(codec({.codec = "fp32"}), "fp32 fp32");
  EXPECT_EQ(codec({.codec = "fp16"}), "fp16 fp16");
  EXPECT_EQ(codec({.codec = "bf16"}), "bf16 bf16");
  EXPECT_EQ(codec({.codec = "int8"}), "int8 fp32");
  EXPECT_EQ(codec({.codec = "top_k"}), "top_k fp32");
  EXPECT_EQ(codec({.codec = "sign"}), "sign fp32");
  EXPECT_EQ(codec({.codec = "int8", .value_codec = "bf16"}), "int8 bf16");
  EXPECT_EQ(codec({.codec = "bf16", .value_codec = "fp32"}), "bf16 fp32");
  EXPECT_EQ(codec({.value_codec = "int8"}), "fp32 int8");
}

TEST(JobOverridesTest, RefusesUnknownNamesAndSaysWhatThereIs) {
  EXPECT_EQ(Fault(kSync, {.mode = "asink"}),
            "flag --mode: got \"asink\", want sync, async, bounded, local_sgd; did you mean \"async\"?");
  EXPECT_EQ(Fault(kSync, {.mode = "fast"}), "flag --mode: got \"fast\", want sync, async, bounded, local_sgd");
  EXPECT_EQ(Fault(kSync, {.codec = "gzip"}),
            "flag --codec: unknown codec \"gzip\", want one of fp32, fp16, bf16, int8, top_k, sign");
  EXPECT_EQ(Fault(kSync, {.codec = "topk"}),
            "flag --codec: unknown codec \"topk\", want one of fp32, fp16, bf16, int8, top_k, sign "
            "(did you mean top_k?)");
  EXPECT_EQ(
      Fault(kSync, {.value_codec = "sign"}),
      "flag --value_codec: codec of values: got sign, which is for gradients only; want one of fp32, fp16, bf16, int8");
}

TEST(JobOverridesTest, RefusesNumbersOutOfTheirRange) {
  EXPECT_EQ(Fault(kSync, {.mode = "bounded", .steps_ahead = "-1"}),
            "flag --steps_ahead: got \"-1\", want a number from 0 to 1000000");
  EXPECT_EQ(Fault(kSync, {.mode = "bounded", .steps_ahead = "1000001"}),
            "flag --steps_ahead: got \"1000001\", want a number from 0 to 1000000");
  EXPECT_EQ(Fault(kSync, {.mode = "bounded", .steps_ahead = "few"}),
            "flag --steps_ahead: got \"few\", want a number from 0 to 1000000");
  EXPECT_EQ(Fault(kSync, {.quorum = "5"}),
            "flag --quorum: got \"5\", want a number from 1 to 4, the number of workers");
  EXPECT_EQ(Fault(kSync, {.quorum = "0"}),
            "flag --quorum: got \"0\", want a number from 1 to 4, the number of workers");
  EXPECT_EQ(Fault(kSync, {.quorum = "4097"}, /*workers=*/0),
            "flag --quorum: got \"4097\", want a number from 1 to 4096");
  EXPECT_EQ(Fault(kSync, {.mode = "local_sgd", .local_steps = "0"}),
            "flag --local_steps: got \"0\", want a number from 1 to 1000000");
}

TEST(JobOverridesTest, RefusesANumberOfAnotherMode) {
  EXPECT_EQ(Fault(kSync, {.mode = "sync", .steps_ahead = "4"}),
            "flag --steps_ahead: got \"4\", want it with mode bounded only; the mode is sync");
  EXPECT_EQ(Fault(kSync, {.mode = "async", .quorum = "2"}),
            "flag --quorum: got \"2\", want it with mode sync only; the mode is async");
  EXPECT_EQ(Fault("policy { async {} }", {.local_steps = "2"}),
            "flag --local_steps: got \"2\", want it with mode local_sgd only; the mode is async");
}

TEST(JobOverridesTest, RefusesAModeThatLacksItsNumber) {
  EXPECT_EQ(Fault(kSync, {.mode = "bounded"}), "flag --mode: got \"bounded\", want --steps_ahead too, 0 to 1000000");
  EXPECT_EQ(Fault(kSync, {.mode = "local_sgd"}),
            "flag --mode: got \"local_sgd\", want --local_steps too, 1 to 1000000");
}

TEST(JobOverridesTest, ResolvesAJobFileForItsWorkers) {
  const std::string path = testing::TempDir() + "/quorum.textproto";
  std::ofstream(path) << R"(name: "tiny"
data { train { csv { path: "train.csv" } } }
model { layers { dense { units: 1 } } loss { mean_squared_error {} } }
training { epochs: 3 batch_size: 8 }
optimizer { sgd { learning_rate: 0.5 } }
policy { sync { quorum: 3 } }
)";
  const auto fault = [&](const JobOverrides& overrides, uint32_t workers) {
    return std::string(ResolveJob(path, overrides, workers).status().message());
  };
  const absl::StatusOr<v1::Job> job = ResolveJob(path, {.codec = "int8"}, 3);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(DescribeMode(*job), "sync, quorum 3, codec int8");
  EXPECT_EQ(fault({}, /*workers=*/0), "") << "not known yet";
  EXPECT_EQ(fault({.mode = "async"}, 2), "");
  EXPECT_EQ(fault({.mode = "asink"}, 3), Fault("", {.mode = "asink"}));
  EXPECT_EQ(fault({.codec = "int8"}, 2),
            path + ": policy.sync.quorum: got 3, want 1 to the number of workers, 2, or 0 for all of them");
}

TEST(JobOverridesTest, DescribesAJobInAFewWords) {
  EXPECT_EQ(DescribeMode(Parse("policy { async {} } codec { gradients: ENCODING_FP32 }")), "async");
  EXPECT_EQ(DescribeMode(Parse("policy { sync { quorum: 3 } }")), "sync, quorum 3");
  EXPECT_EQ(DescribeMode(Good(kSync, {.mode = "bounded", .steps_ahead = "0", .codec = "int8"})),
            "bounded, 0 steps ahead, codec int8");
  EXPECT_EQ(DescribeMode(Good(kSync, {.codec = "bf16"})), "sync, codec bf16");
  EXPECT_EQ(DescribeMode(Good(kSync, {.durability = "checkpoint"})), "sync, durability checkpoint");
  EXPECT_EQ(DescribeMode(Good(kSync, {.codec = "bf16", .precision = "tf32"})), "sync, codec bf16, precision tf32");
  EXPECT_EQ(DescribeMode(Good(kSync, {.codec = "top_k", .value_codec = "fp16"})), "sync, codec top_k, values fp16");
  EXPECT_EQ(DescribeMode(Good(kSync, {.mode = "local_sgd", .local_steps = "8"})), "local_sgd, local steps 8");
}

TEST(JobOverridesTest, FlagsSayTheSameToAWorker) {
  EXPECT_TRUE(ToFlags({}).empty());
  EXPECT_EQ(ToFlags({.mode = "bounded", .steps_ahead = "4", .codec = "int8"}),
            (std::vector<std::string>{"--mode", "bounded", "--steps_ahead", "4", "--codec", "int8"}));
  EXPECT_EQ(ToFlags({.quorum = "3", .local_steps = "2", .value_codec = "bf16"}),
            (std::vector<std::string>{"--quorum", "3", "--local_steps", "2", "--value_codec", "bf16"}));
}

}  // namespace
}  // namespace ballast
