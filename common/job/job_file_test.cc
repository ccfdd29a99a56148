// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_replace.h"

namespace ballast {
namespace {

using ::testing::StartsWith;

constexpr char kGood[] = R"(name: "tiny"
data { train { csv { path: "train.csv" } } }
model {
  layers { dense { units: 10 } }
  loss { mean_squared_error {} }
}
training { epochs: 3 batch_size: 8 }
optimizer { sgd { learning_rate: 0.5 } }
)";

std::string With(absl::string_view from, absl::string_view to) {
  const std::string text = absl::StrReplaceAll(kGood, {{from, to}});
  EXPECT_NE(text, kGood);
  return text;
}

void ExpectFault(const std::string& text, const std::string& message) {
  EXPECT_EQ(ParseJob(text, "tiny.textproto").status(), absl::InvalidArgumentError(message));
}

TEST(ParseJobTest, ReadsAJob) {
  const v1::Job job = ParseJob(kGood, "tiny.textproto").value();
  EXPECT_EQ(job.name(), "tiny");
  EXPECT_EQ(job.model().layers(0).dense().units(), 10);
  EXPECT_EQ(job.optimizer().sgd().learning_rate(), 0.5f);
}

TEST(ParseJobTest, MakesAnAbsentPolicySyncAndFillsInNothingElse) {
  const v1::Job job = ParseJob(kGood, "tiny.textproto").value();
  EXPECT_TRUE(job.policy().has_sync());
  EXPECT_FALSE(job.policy().sync().deterministic());
  EXPECT_EQ(job.training().wait_seconds(), 0);
  EXPECT_EQ(job.data().train().csv().delimiter(), "");
}

TEST(ParseJobTest, NamesFileLineColumnAndNearestField) {
  ExpectFault(With("units", "unit"),
              "tiny.textproto:4:20: model.layers.dense has no field \"unit\"; did you mean \"units\"?");
}

TEST(ParseJobTest, ReportsAtMostFiveFaultsTheFirstFirst) {
  const std::string names =
      "; valid names are \"name\", \"seed\", \"data\", \"model\", \"training\", \"optimizer\", \"policy\", \"codec\", "
      "\"durability\", \"init_from\", \"freeze\"\n";
  ExpectFault("a1: 1\na2: 2\na3: 3\na4: 4\na5: 5\na6: 6\na7: 7\n",
              "tiny.textproto:1:1: the job has no field \"a1\"" + names +
                  "tiny.textproto:2:1: the job has no field \"a2\"" + names +
                  "tiny.textproto:3:1: the job has no field \"a3\"" + names +
                  "tiny.textproto:4:1: the job has no field \"a4\"" + names +
                  "tiny.textproto:5:1: the job has no field \"a5\"" + names + "and 2 more");
}

TEST(ParseJobTest, LocatesBadSyntax) {
  ExpectFault(With("epochs: 3", "epochs 3"), "tiny.textproto:7:19: Expected \":\", found \"3\".");
}

TEST(ParseJobTest, LocatesAnUnterminatedText) {
  const absl::Status status = ParseJob("name: \"tiny\nseed: 1", "tiny.textproto").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("tiny.textproto:1:"));
}

TEST(ParseJobTest, LocatesANumberOutOfItsTypesRange) {
  ExpectFault(With("epochs: 3", "epochs: 4294967296"), "tiny.textproto:7:20: Integer out of range (4294967296)");
}

TEST(ParseJobTest, RefusesTwoKindsInOneLayer) {
  const absl::Status status =
      ParseJob(With("dense { units: 10 }", "dense { units: 10 } relu {}"), "tiny.textproto").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("tiny.textproto:4:"));
}

TEST(ParseJobTest, LocatesAValueOutOfItsRange) {
  ExpectFault(With("units: 10", "units: 0"),
              "tiny.textproto:4:20: model.layers[0].dense.units: got 0, want 1 to 1048576");
  ExpectFault(With("epochs: 3 batch_size: 8", "epochs: 0 batch_size: 8 accumulate_batches: 65537"),
              "tiny.textproto:7:12: training.epochs: got 0, want 1 to 1000000\n"
              "tiny.textproto:7:36: training.accumulate_batches: got 65537, want 1 to 65536, or nothing for 1");
}

TEST(ParseJobTest, LocatesWhatServersWouldRefuse) {
  ExpectFault(With("0.5", "-0.5"),
              "tiny.textproto:8:19: optimizer.sgd.learning_rate: got -0.5, want a finite number above 0");
  ExpectFault(With("optimizer {", "optimizer { schedule { step { every: 5 factor: 2 } }"),
              "tiny.textproto:8:40: optimizer.schedule.step.factor: got 2, want a number in (0, 1]");
  ExpectFault(std::string(kGood) + "policy { local_sgd { local_steps: 0 } }",
              "tiny.textproto:9:22: policy.local_sgd.local_steps: got 0, want 1 to 1000000");
  ExpectFault(std::string(kGood) + "codec { top_k_fraction: 2 }",
              "tiny.textproto:9:1: codec: top_k_fraction: got 2, want above 0 and at most 1");
}

TEST(ParseJobTest, LocatesWhatIsAroundAFieldThatIsNotSet) {
  ExpectFault(With(" batch_size: 8", ""), "tiny.textproto:7:1: training.batch_size: got 0, want 1 to 1048576");
  ExpectFault(With("name: \"tiny\"\n", ""),
              "tiny.textproto: name: got \"\", want 1 to 63 of a-z, 0-9, '_' and '-', starting with a letter");
}

TEST(ParseJobTest, UnknownOptimizerPolicyAndCodecAreToldWhatThereIs) {
  const std::string good = kGood;
  ExpectFault(good + "policy { bouned { staleness: 4 } }",
              "tiny.textproto:9:10: policy has no field \"bouned\"; did you mean \"bounded\"?");
  ExpectFault(good + "policy { gossip {} }",
              "tiny.textproto:9:10: policy has no field \"gossip\"; valid names are \"sync\", \"async\", \"bounded\", "
              "\"local_sgd\", \"accept_non_finite\"");
  ExpectFault(good + "codec { gradients: int8 }",
              "tiny.textproto:9:20: codec.gradients has no value \"int8\"; did you mean \"ENCODING_INT8\"?");
  ExpectFault(good + "codec { gradients: zip }",
              "tiny.textproto:9:20: codec.gradients has no value \"zip\"; valid names are \"ENCODING_UNSPECIFIED\", "
              "\"ENCODING_FP32\", \"ENCODING_FP16\", \"ENCODING_BF16\", \"ENCODING_INT8\", \"ENCODING_TOP_K\", "
              "\"ENCODING_SIGN\"");
  const absl::Status status = ParseJob(good + "optimizer { tiger { learning_rate: 1 } }", "tiny.textproto").status();
  EXPECT_THAT(
      std::string(status.message()),
      StartsWith("tiny.textproto:9:13: optimizer has no field \"tiger\"; valid names are \"sgd\", \"momentum\", "));
}

TEST(ParseJobTest, PrecisionGoesByItsName) {
  const v1::Job job = ParseJob(With("batch_size: 8", "batch_size: 8 precision: BF16"), "tiny.textproto").value();
  EXPECT_EQ(job.training().precision(), v1::BF16);
  ExpectFault(With("batch_size: 8", "batch_size: 8 precision: bf16"),
              "tiny.textproto:7:47: training.precision has no value \"bf16\"; did you mean \"BF16\"?");
  ExpectFault(With("batch_size: 8", "batch_size: 8 precision: INT4"),
              "tiny.textproto:7:47: training.precision has no value \"INT4\"; valid names are \"FP32\", \"TF32\", "
              "\"BF16\", \"FP16\"");
}

TEST(ParseJobTest, RefusesAnEmptyFile) {
  EXPECT_EQ(ParseJob("", "x").status().code(), absl::StatusCode::kInvalidArgument);
}

// Random edits and truncations.
TEST(ParseJobTest, SurvivesAnyDamage) {
  constexpr char kPieces[] = "{}[]<>:;,\"'-#\n 0x1e9.name\\\xff";
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = kGood;
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    for (int changes = random() % 4; changes > 0 && !damaged.empty(); --changes) {
      damaged[random() % damaged.size()] = kPieces[random() % (sizeof(kPieces) - 1)];
    }
    const absl::StatusOr<v1::Job> job = ParseJob(damaged, "tiny.textproto");
    if (job.ok()) continue;
    ++refused;
    EXPECT_EQ(job.status().message().find("tiny.textproto:"), 0) << job.status();
  }
  EXPECT_GT(refused, 10000);
}

TEST(LoadJobTest, ReadsAFile) {
  const std::string path = testing::TempDir() + "/tiny.textproto";
  std::ofstream(path) << kGood;
  const v1::Job job = LoadJob(path).value();
  EXPECT_EQ(job.name(), "tiny");
}

TEST(LoadJobTest, NamesAMissingFile) {
  EXPECT_EQ(LoadJob("no/such.textproto").status(),
            absl::NotFoundError("job file no/such.textproto: No such file or directory"));
}

TEST(LoadJobTest, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(LoadJob("/dev/zero").status().message(), "job file /dev/zero is not a regular file");
  EXPECT_EQ(LoadJob("/").status().message(), "job file / is not a regular file");
}

TEST(WithAbsolutePathsTest, MakesThoseOfEachFormatAbsolute) {
  v1::Job job;
  job.mutable_data()->mutable_train()->mutable_csv()->set_path("train.csv");
  job.mutable_data()->mutable_train()->mutable_csv()->set_delimiter(";");
  job.mutable_data()->mutable_test()->mutable_libsvm()->set_path("../test");
  job = WithAbsolutePaths(job, "/jobs");
  EXPECT_EQ(job.data().train().csv().path(), "/jobs/train.csv");
  EXPECT_EQ(job.data().train().csv().delimiter(), ";");
  EXPECT_EQ(job.data().test().libsvm().path(), "/jobs/../test");
  job.mutable_data()->clear_test();
  job.mutable_data()->mutable_train()->mutable_idx()->set_images("images");
  job.mutable_data()->mutable_train()->mutable_idx()->set_labels("/data/labels");
  job = WithAbsolutePaths(job, "jobs");
  EXPECT_EQ(job.data().train().idx().images(), std::filesystem::current_path() / "jobs/images");
  EXPECT_EQ(job.data().train().idx().labels(), "/data/labels");
  EXPECT_FALSE(job.data().has_test());
}

TEST(WithAbsolutePathsTest, MakesTheInitialWeightsAbsolute) {
  v1::Job job;
  EXPECT_EQ(WithAbsolutePaths(job, "/jobs").init_from(), "");
  job.set_init_from("runs/a/model.safetensors");
  EXPECT_EQ(WithAbsolutePaths(job, "/jobs").init_from(), "/jobs/runs/a/model.safetensors");
  job.set_init_from("/models/m");
  EXPECT_EQ(WithAbsolutePaths(job, "/jobs").init_from(), "/models/m");
}

TEST(SaveJobTest, WritesAJobThatLoadJobReads) {
  v1::Job job = *ParseJob(With("learning_rate: 0.5", "learning_rate: 0.1"), "tiny.textproto");
  job.mutable_data()->mutable_train()->mutable_csv()->set_path("/d\u00fc/\"a\n#.csv");
  const std::string path = testing::TempDir() + "/saved.textproto";
  ASSERT_TRUE(SaveJob(path, job, "# from a test\n").ok());
  const absl::StatusOr<v1::Job> loaded = LoadJob(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->SerializeAsString(), job.SerializeAsString());
  std::string line;
  EXPECT_TRUE(std::getline(std::ifstream(path), line));
  EXPECT_EQ(line, "# from a test");
}

TEST(LoadJobTest, ReadsTheConvolutionExample) {
  const v1::Job job = LoadJob("examples/fashion_mnist_cnn.textproto").value();
  EXPECT_EQ(job.name(), "fashion_mnist_cnn");
  EXPECT_EQ(job.model().input().width(), 28);
}

TEST(LoadJobTest, ReadsTheExample) {
  const v1::Job job = LoadJob("examples/fashion_mnist.textproto").value();
  EXPECT_EQ(job.name(), "fashion_mnist");
  EXPECT_TRUE(job.policy().sync().deterministic());
}

}  // namespace
}  // namespace ballast
