// SPDX-License-Identifier: Apache-2.0
// Whole jobs by `ballast launch` with real servers, whose workers compute on an emulated GPU: the real CUDA device
// code, kernels and streams without NVIDIA's libraries.
#include <cmath>

#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr char kConvolutions[] = R"(
  input { height: 2 width: 2 }
  layers { conv2d { filters: 8 kernel: 2 padding: 1 no_bias: true } }
  layers { batch_norm {} }
  layers { relu {} }
  layers { dense { units: 3 } }
)";
constexpr char kDense[] = R"(
  layers { dense { units: 16 } }
  layers { relu {} }
  layers { dense { units: 3 } }
)";

class EmulatedGpuTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    setenv("BALLAST_WORKER_BINARY", Binary("tests/emulated_worker").c_str(), 1);
    unsetenv("BALLAST_EMULATED_GPU");
  }

  // Largest difference between the weights of two runs.
  double LargestDifference(const std::string& a, const std::string& b) const {
    const std::vector<LoadedTensor> first = Model(a), second = Model(b);
    EXPECT_EQ(first.size(), second.size());
    if (first.empty() || first.size() != second.size()) return INFINITY;
    double most = 0;
    for (size_t t = 0; t < first.size(); ++t) {
      EXPECT_EQ(first[t].name, second[t].name);
      for (size_t i = 0; i < first[t].values.size(); ++i) {
        most = std::max<double>(most, std::abs(first[t].values[i] - second[t].values[i]));
      }
    }
    return most;
  }

  // Expects the launch to exit with status 2 and an error that contains each of `said`.
  void ExpectRefused(const std::string& gpu, const std::vector<std::string>& said) {
    WriteJob();
    setenv("BALLAST_EMULATED_GPU", gpu.c_str(), 1);
    ChildProcess launch = Launch({}, "run", "cuda");
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 2") << launch.output();
    for (const std::string& text : said) EXPECT_THAT(launch.output(), HasSubstr(text));
  }
};

TEST_F(EmulatedGpuTest, AModelOfTheCpuPredictsTheSameOnIt) {
  WriteJob(
      {{"\n  layers { dense { units: 16 } }\n  layers { relu {} }\n  layers { dense { units: 3 } }\n", kConvolutions}});
  Train({}, "run", "cpu");
  const auto on = [&](const std::string& device) {
    return Json::parse(Run({"eval", Path("run"), "--data", Path("test.csv"), "--device", device, "--json"}));
  };
  const Json cpu = on("cpu"), cuda = on("cuda");
  EXPECT_NEAR(cuda["loss"].get<double>(), cpu["loss"].get<double>(), 1e-5);
  EXPECT_EQ(cuda["accuracy"], cpu["accuracy"]);
  EXPECT_GE(cuda["accuracy"].get<double>(), 0.8);
}

// Bags of one id and of none, sums and means, and products of pairs.
TEST_F(EmulatedGpuTest, AModelWithTablesTrainsAsOnTheCpu) {
  const auto write = [&](const std::string& precision) {
    Write("job.textproto", absl::StrCat(R"(name: "clicks"
seed: 3
data {
  train { planted_clicks { rows: 1200 end: 1000 ids: 30 drift: 0 } }
  test { planted_clicks { rows: 1200 begin: 1000 ids: 30 drift: 0 } }
}
model {
  tables { name: "sums" dim: 4 optimizer { adagrad { learning_rate: 0.1 } } }
  tables { name: "means" dim: 4 optimizer { adagrad { learning_rate: 0.1 } } }
  layers { dense { units: 4 } }
  layers { embedding { table: "sums" fields: ["C1", "C2", "C3"] } }
  layers { embedding { table: "means" fields: ["C3", "C26"] pooling: AVERAGE } }
  layers { dot_interaction { dim: 4 } }
  layers { dense { units: 1 } }
  loss { sigmoid_cross_entropy {} }
}
training { epochs: 1 batch_size: 33 precision: )",
                                        precision, R"( }
optimizer { adagrad { learning_rate: 0.02 } }
policy { sync { deterministic: true } }
)"));
  };
  write("FP32");
  const Json cpu = Train({"--workers", "1"}, "on_cpu", "cpu");
  const Json cuda = Train({"--workers", "1"}, "on_cuda", "cuda");
  EXPECT_EQ(cuda["rows"], cpu["rows"]);
  EXPECT_NEAR(cuda["log_loss"].get<double>(), cpu["log_loss"].get<double>(), 1e-5);
  EXPECT_LE(LargestDifference("on_cpu", "on_cuda"), 1e-5);
  Run({"data", "ctr", Path("clicks"), "--rows", "10", "--test_rows", "100", "--ids", "30", "--drift", "0", "--seed",
       "3"});
  const auto eval = [&](const std::string& device) {
    return Json::parse(Run({"eval", Path("on_cuda"), "--data", Path("clicks/test.tsv"), "--device", device, "--json"}));
  };
  EXPECT_NEAR(eval("cuda")["loss"].get<double>(), eval("cpu")["loss"].get<double>(), 1e-5);
  write("BF16");
  const Json half = Train({"--workers", "1"}, "in_bf16", "cuda");
  EXPECT_EQ(half["rows"], cpu["rows"]);
  EXPECT_NEAR(half["log_loss"].get<double>(), cpu["log_loss"].get<double>(), 2e-2);
}

struct Training {
  std::string precision;
  std::string model;
  // Largest difference between the trained weights and those of the CPU in fp32.
  double tolerance;
};

class EmulatedGpuTrainingTest : public EmulatedGpuTest, public ::testing::WithParamInterface<Training> {};

TEST_P(EmulatedGpuTrainingTest, LearnsWhatTheCpuLearns) {
  WriteJob({{"\n  layers { dense { units: 16 } }\n  layers { relu {} }\n  layers { dense { units: 3 } }\n",
             GetParam().model}});
  const Json cpu = Train({"--servers", "2"}, "cpu", "cpu");
  const Json gpu = Train({"--servers", "2", "--precision", GetParam().precision}, "cuda", "cuda");
  EXPECT_THAT(gpu["device"].get<std::string>(), StartsWith("cuda (Emulated, "));
  EXPECT_EQ(gpu["precision"], GetParam().precision);
  EXPECT_EQ(gpu["steps"], cpu["steps"]);
  // Guessing gives ln 3.
  EXPECT_LT(gpu["train_loss"].get<double>(), 0.5);
  EXPECT_GT(gpu["test_accuracy"].get<double>(), 0.9);
  EXPECT_NEAR(gpu["test_loss"].get<double>(), cpu["test_loss"].get<double>(), GetParam().tolerance);
  EXPECT_LE(LargestDifference("cpu", "cuda"), GetParam().tolerance);
  EXPECT_EQ(gpu["loss_scale"].is_null(), GetParam().precision != "fp16");
  EXPECT_THAT(Read("cuda/logs/worker-0.log"), HasSubstr("memory of device 0: at most "));
  ASSERT_EQ(gpu["gpu_peak_bytes"].size(), 1u);
  EXPECT_GT(gpu["gpu_peak_bytes"][0].get<int64_t>(), gpu["memory"]["weights"].get<int64_t>());
  EXPECT_TRUE(cpu["gpu_peak_bytes"].empty());
}

INSTANTIATE_TEST_SUITE_P(, EmulatedGpuTrainingTest,
                         ::testing::Values(Training{"fp32", kDense, 1e-4}, Training{"bf16", kDense, 5e-2},
                                           Training{"fp16", kDense, 5e-2}, Training{"fp32", kConvolutions, 1e-3},
                                           Training{"bf16", kConvolutions, 0.2}, Training{"fp16", kConvolutions, 0.1}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.precision,
                                               info.param.model == kDense ? "_dense" : "_convolutions");
                         });

TEST_F(EmulatedGpuTest, TwoWorkersTrainTogether) {
  WriteJob();
  const Json cpu = Train({"--workers", "2"}, "cpu", "cpu");
  const Json gpu = Train({"--workers", "2"}, "cuda", "cuda");
  EXPECT_EQ(gpu["steps"], cpu["steps"]);
  EXPECT_LE(LargestDifference("cpu", "cuda"), 1e-4);
}

// The streams run in another order; the values stay the same.
TEST_F(EmulatedGpuTest, RunsGiveTheSameBits) {
  WriteJob();
  setenv("BALLAST_EMULATED_GPU", "seed=1", 1);
  Train({}, "first", "cuda");
  setenv("BALLAST_EMULATED_GPU", "seed=2", 1);
  Train({"--trace", Path("trace.json")}, "second", "cuda");
  EXPECT_EQ(LargestDifference("first", "second"), 0);
}

// --- unusable GPUs ---

TEST_F(EmulatedGpuTest, AMachineWithoutAGpuIsTold) {
  ExpectRefused("devices=0", {"error: ", "--device cuda: ", "finds no GPU", "use --device cpu"});
}

TEST_F(EmulatedGpuTest, AMachineWithoutADriverIsTold) {
  ExpectRefused("driver_version=0", {"--device cuda: no NVIDIA driver", "use --device cpu"});
}

TEST_F(EmulatedGpuTest, TooOldADriverIsNamedWithTheVersionWanted) {
  ExpectRefused("driver_version=12040",
                {"it supports CUDA 12.4, want at least 13.0; update the driver", "use --device cpu"});
}

TEST_F(EmulatedGpuTest, TooOldAChipIsNamedWithWhatIsWanted) {
  ExpectRefused("compute_major=7", {"has compute capability 7.0, want at least 8.0", "use --device cpu"});
}

TEST_F(EmulatedGpuTest, AGpuThatAnotherProcessFillsIsNamed) {
  ExpectRefused("full=1", {"--device cuda: GPU 0, Emulated, cannot be opened: ", "see nvidia-smi", "use --device cpu"});
}

TEST_F(EmulatedGpuTest, AGpuThatAnotherProcessHasAloneIsNamed) {
  ExpectRefused("exclusive=1", {"--device cuda: GPU 0, Emulated, cannot be opened: ",
                                "its compute mode is EXCLUSIVE_PROCESS", "use --device cpu"});
}

TEST_F(EmulatedGpuTest, AGpuWithTooLittleMemorySaysWhatWasAskedAndWhatIsFree) {
  ExpectRefused("memory_bytes=1024", {"free", "batch"});
}

TEST_F(EmulatedGpuTest, AutoTakesTheCpuWhereNoGpuFits) {
  WriteJob();
  setenv("BALLAST_EMULATED_GPU", "driver_version=12040", 1);
  EXPECT_THAT(Train({}, "run", "auto")["device"].get<std::string>(), StartsWith("cpu ("));
}

// Every supported GPU (compute capability 8.0 or newer) has all precisions; the CPU does not.
TEST_F(EmulatedGpuTest, APrecisionThatTheDeviceLacksIsRefused) {
  WriteJob();
  setenv("BALLAST_EMULATED_GPU", "compute_major=7", 1);
  ChildProcess launch = Launch({"--precision", "bf16"}, "run", "auto");
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 2") << launch.output();
  EXPECT_THAT(launch.output(),
              HasSubstr("got precision bf16, want fp32: use a GPU (--device cuda), or --precision fp32"));
}

// --- a GPU that is lost during the run ---

class LostGpuTest : public EmulatedGpuTest {
 protected:
  ChildProcess Worker(const std::string& rank, const std::string& device, const std::string& gpu) {
    return ChildProcess({"/usr/bin/env", absl::StrCat("BALLAST_EMULATED_GPU=", gpu), Binary("tests/emulated_worker"),
                         "--coordinator", address_, "--job", Path("job.textproto"), "--threads", "1", "--device",
                         device, "--rank", rank, "--run_dir", Path("run")});
  }
};

TEST_F(LostGpuTest, EndsALaunchThatMayNotStartTheWorkerAgain) {
  WriteEndlessJob();
  setenv("BALLAST_EMULATED_GPU", "lost_after=5000", 1);
  ChildProcess launch = Launch({"--max-restarts", "0"}, "run", "cuda");
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 1") << launch.output();
  EXPECT_THAT(launch.output(), AllOf(HasSubstr("cudaErrorECCUncorrectable"), HasSubstr("lost")));
}

// Each process that the launch starts loses the GPU.
TEST_F(LostGpuTest, ComesBackInAWorkerThatTheLaunchStartsAgain) {
  WriteJob({{"epochs: 3", "epochs: 12"}});
  setenv("BALLAST_EMULATED_GPU", "lost_after=20000", 1);
  const Json summary = Train({}, "run", "cuda");
  EXPECT_EQ(summary["epochs"], 12);
  EXPECT_GE(summary["restarts"].get<int>(), 1);
  EXPECT_GT(summary["test_accuracy"].get<double>(), 0.9);
}

class LostGpuMomentTest : public LostGpuTest, public ::testing::WithParamInterface<int> {};

// The worker reports why it leaves, so no worker waits for a timeout; the other one trains on its unfinished data.
TEST_P(LostGpuMomentTest, LeavesTheJobAndTheOtherWorkerGoesOn) {
  WriteJob({{"epochs: 3", "epochs: 50"}});
  ChildProcess server = StartServer({"--workers", "2"});
  ChildProcess other = Worker("0", "cpu", "");
  ChildProcess victim = Worker("1", "cuda", absl::StrCat("lost_after=", GetParam()));
  EXPECT_EQ(victim.Wait().ToString(), "ended with status 3") << victim.output();
  EXPECT_THAT(victim.last_line(),
              AllOf(StartsWith("error: cuda device: "), HasSubstr("cudaErrorECCUncorrectable"), HasSubstr("lost")));
  ASSERT_TRUE(server.AwaitOutput("the GPU is lost")) << server.output();
  ASSERT_TRUE(server.AwaitOutput("the others continue")) << server.output();
  EXPECT_EQ(other.Wait().ToString(), "ended with status 0") << other.output();
  const Json summary = Json::parse(Read("run/summary.json"), nullptr, /*allow_exceptions=*/false);
  EXPECT_EQ(summary["epochs"], 50);
  EXPECT_EQ(summary["workers_lost"], 1);
  EXPECT_GT(summary["test_accuracy"].get<double>(), 0.9);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait().ToString(), "ended with status 0");
}

// Before graphs are captured, during the capture, and when they are launched.
INSTANTIATE_TEST_SUITE_P(, LostGpuMomentTest, ::testing::Values(300, 500, 5000),
                         [](const auto& info) { return absl::StrCat("after", info.param); });

}  // namespace
}  // namespace ballast
