// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_source.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/job/job_file.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = R"(name: "tiny"
data { train { csv { path: "train.csv" } } }
model {
  layers { dense { units: 10 } }
  loss { mean_squared_error {} }
}
training { epochs: 3 batch_size: 8 }
optimizer { sgd { learning_rate: 0.5 } }
)";

class JobSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/jobs");
    Write("jobs/job.textproto", kJob);
  }

  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  std::string Path(const std::string& name) { return folder_ + "/" + name; }

  absl::StatusOr<v1::Job> Resolve(JobSource source) {
    if (source.path.empty()) source.path = Path("jobs/job.textproto");
    return ResolveJob(source, 4);
  }

  // The error without the test's directory.
  std::string Fault(JobSource source) {
    return absl::StrReplaceAll(Resolve(std::move(source)).status().message(), {{folder_ + "/", ""}});
  }

  std::string folder_;
};

TEST_F(JobSourceTest, LaterPartsComeOverEarlierOnes) {
  Write("more.textproto", "training { epochs: 20 batch_size: 32 } durability { mode: WAL }");
  Write("less.textproto", "training { epochs: 10 }");
  const absl::StatusOr<v1::Job> job = Resolve({.set_files = {Path("more.textproto"), Path("less.textproto")},
                                               .sets = {"training.batch_size=64", "training.batch_size=65"},
                                               .overrides = {.mode = "async", .durability = "none"}});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->training().ShortDebugString(), "epochs: 10 batch_size: 65");
  EXPECT_TRUE(job->policy().has_async());
  EXPECT_EQ(job->durability().mode(), v1::Durability::NONE);
  EXPECT_EQ(job->name(), "tiny");
}

TEST_F(JobSourceTest, ARelativePathIsRelativeToItsFileOrToTheCurrentDirectory) {
  std::filesystem::create_directories(folder_ + "/other");
  Write("other/data.textproto", "data { test { csv { path: \"test.csv\" } } }");
  EXPECT_EQ(Resolve({})->data().train().csv().path(), Path("jobs/train.csv"));
  EXPECT_EQ(Resolve({.set_files = {Path("other/data.textproto")}})->data().test().csv().path(), Path("other/test.csv"));
  EXPECT_EQ(Resolve({.sets = {"data.train.csv.path=mine.csv"}})->data().train().csv().path(),
            (std::filesystem::current_path() / "mine.csv").string());
}

TEST_F(JobSourceTest, AFaultIsPlacedAtThePartThatCausedIt) {
  Write("wide.textproto", "\nmodel { layers { dense { units: -1 } } }");
  Write("typo.textproto", "trainin { epochs: 1 }");
  EXPECT_EQ(Fault({.sets = {"training.epochs=0"}}),
            "--set training.epochs=0: training.epochs: got 0, want 1 to 1000000");
  EXPECT_EQ(Fault({.sets = {"training=epochs: 2"}}),
            "--set training=epochs: 2: training.batch_size: got 0, want 1 to 1048576");
  EXPECT_EQ(Fault({.set_files = {Path("wide.textproto")}}),
            "wide.textproto:2:26: model.layers[0].dense.units: got -1, want 1 to 1048576");
  EXPECT_EQ(Fault({.set_files = {Path("typo.textproto")}}),
            "typo.textproto:1:1: the job has no field \"trainin\"; did you mean \"training\"?");
  EXPECT_EQ(Fault({.sets = {"epochs=5"}}),
            "flag --set: the job has no field \"epochs\"; did you mean training.epochs?");
  EXPECT_EQ(Fault({.set_files = {Path("none")}}), "job file none: No such file or directory");
}

TEST_F(JobSourceTest, AFlagMayCompleteAFileThatIsNotValid) {
  Write("jobs/job.textproto", absl::StrReplaceAll(kJob, {{"training { epochs: 3 batch_size: 8 }\n", ""}}));
  EXPECT_EQ(Fault({.sets = {"training.epochs=2"}}),
            "jobs/job.textproto: training.batch_size: got 0, want 1 to 1048576");
  EXPECT_TRUE(Resolve({.sets = {"training=epochs: 2 batch_size: 4"}}).ok());
}

TEST_F(JobSourceTest, ASettingAndAFlagForTheSameFieldAreRefused) {
  // A setting, flags, and how the error begins; empty: the two agree.
  const struct {
    const char* setting;
    JobOverrides flags;
    const char* fault;
  } cases[] = {
      {"policy.sync.quorum=2", {.quorum = "3"}, "flag --quorum: got \"3\" and --set policy.sync.quorum=2, which are "},
      {"policy.sync.quorum=2", {.mode = "async"}, "flag --mode: got \"async\" and --set policy.sync.quorum=2, which "},
      {"policy=async {}", {.mode = "async"}, "flag --mode: got \"async\" and --set policy=async {}, which are for "},
      {"codec.values=bf16", {.codec = "int8"}, "flag --codec: got \"int8\" and --set codec.values=bf16, which are for"},
      {"codec={}", {.value_codec = "int8"}, "flag --value_codec: got \"int8\" and --set codec={}, which are for the s"},
      {"training.precision=FP32", {.precision = "tf32"}, "flag --precision: got \"tf32\" and --set training.precision"},
      {"durability.mode=WAL", {.durability = "wal"}, "flag --durability: got \"wal\" and --set durability.mode=WAL, "},
      {"policy.sync.quorum=2", {.mode = "sync"}, ""},
      {"policy.bounded.steps_ahead=2", {.mode = "bounded"}, ""},
      {"policy.accept_non_finite=true", {.mode = "async"}, ""},
      {"codec.top_k_fraction=0.5", {.codec = "top_k"}, ""},
      {"durability.return_seconds=9", {.durability = "wal"}, ""},
  };
  for (const auto& one : cases) {
    const std::string fault = Fault({.sets = {one.setting}, .overrides = one.flags});
    EXPECT_EQ(fault.substr(0, std::string(one.fault).size()), one.fault) << one.setting;
    EXPECT_EQ(fault.empty(), std::string(one.fault).empty()) << fault;
  }
}

TEST_F(JobSourceTest, AMissingFileOfTheDataIsNamedWithTheLineThatNamesIt) {
  EXPECT_TRUE(Resolve({}).ok());
  EXPECT_EQ(
      Fault({.with_data = true}),
      "jobs/job.textproto:2:22: data.train.csv.path: jobs/train.csv: No such file or directory (relative paths in "
      "a file are relative to its directory, others to the current directory)");
  Write("jobs/train.csv", "1,2\n");
  EXPECT_TRUE(Resolve({.with_data = true}).ok());
  EXPECT_THAT(Fault({.sets = {"init_from=no.safetensors"}, .with_data = true}),
              HasSubstr("--set init_from=no.safetensors: init_from: /"));
}

TEST_F(JobSourceTest, StandardInputMayBeTheJob) {
  const int before = dup(STDIN_FILENO);
  const auto resolve = [&](const std::string& text) {
    Write("piped", text);
    EXPECT_NE(freopen(Path("piped").c_str(), "r", stdin), nullptr);
    return ResolveJob({.path = "-"}, 1);
  };
  const absl::StatusOr<v1::Job> job = resolve(kJob);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->data().train().csv().path(), (std::filesystem::current_path() / "train.csv").string());
  EXPECT_EQ(resolve("nmae: \"x\"").status().message(),
            "standard input:1:1: the job has no field \"nmae\"; did you mean \"name\"?");
  EXPECT_EQ(resolve(std::string((4 << 20) + 1, ' ')).status().message().substr(0, 20), "standard input: has ");
  dup2(before, STDIN_FILENO);
  close(before);
}

TEST_F(JobSourceTest, FlagsSayTheSameAgain) {
  EXPECT_EQ(ToFlags(JobSource{.path = "a", .set_files = {"b"}, .sets = {"c=d"}, .overrides = {.mode = "async"}}),
            (std::vector<std::string>{"--set-file", "b", "--set", "c=d", "--mode", "async"}));
}

constexpr char kSparseJob[] = R"(name: "tiny"
data { train { csv { path: "train.csv" } } }
model {
  input { height: 2 width: 2 }
  layers { conv2d { filters: 4 kernel: 3 padding: 1 } }
  layers { residual { layers { batch_norm { momentum: 0.5 } } } }
  layers { max_pool { kernel: 2 } }
  layers { average_pool {} }
  layers { dense { units: 10 } }
  loss { mean_squared_error {} }
}
training { epochs: 3 batch_size: 8 wait_seconds: 30 }
optimizer { adam { learning_rate: 0.5 } }
durability { mode: WAL }
)";

TEST(WithDefaultsTest, FillsInWhatTheFileLeavesOut) {
  const v1::Job job = WithDefaults(ParseJob(kSparseJob, "tiny").value());
  EXPECT_EQ(job.training().ShortDebugString(),
            "epochs: 3 batch_size: 8 wait_seconds: 30 report_every_steps: 10 accumulate_batches: 1");
  EXPECT_EQ(job.codec().ShortDebugString(), "gradients: ENCODING_FP32 values: ENCODING_FP32");
  EXPECT_EQ(job.durability().ShortDebugString(),
            "mode: WAL checkpoint_seconds: 60 keep_checkpoints: 2 return_seconds: 60");
  EXPECT_EQ(job.model().input().ShortDebugString(), "height: 2 width: 2 channels: 1");
  const char* const layers[] = {
      "conv2d { filters: 4 kernel: 3 stride: 1 padding: 1 initializer { he_normal { } } }",
      "residual { layers { batch_norm { epsilon: 1e-05 momentum: 0.5 } } }",
      "max_pool { kernel: 2 stride: 2 padding: 0 }",
      "average_pool { }",
      "dense { units: 10 initializer { he_normal { } } }",
  };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(job.model().layers(i).ShortDebugString(), layers[i]);
  EXPECT_EQ(job.optimizer().ShortDebugString(), "adam { learning_rate: 0.5 beta1: 0.9 beta2: 0.999 epsilon: 1e-08 }");
}

TEST(WithDefaultsTest, TheResultIsAValidJobThatHasThemAll) {
  const v1::Job once = WithDefaults(ParseJob(kSparseJob, "tiny").value());
  EXPECT_TRUE(ValidateJob(once).ok()) << ValidateJob(once);
  EXPECT_EQ(WithDefaults(once).DebugString(), once.DebugString());
}

}  // namespace
}  // namespace ballast
