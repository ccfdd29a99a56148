// SPDX-License-Identifier: Apache-2.0
// Guarantees of a job's modes, codecs and batching, by `ballast launch` with real servers and workers.
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;
using ::testing::SizeIs;

class ModesTest : public JobTest {
 protected:
  void ExpectNear(const std::string& run, const std::string& other) const {
    const std::vector<LoadedTensor> a = Model(run), b = Model(other);
    ASSERT_THAT(a, SizeIs(4));
    ASSERT_THAT(b, SizeIs(4));
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_THAT(a[i].values, Pointwise(FloatNear(1e-5), b[i].values)) << a[i].name;
    }
  }
};

TEST_F(ModesTest, AccumulatedBatchesTrainAsOneLargeBatch) {
  for (int workers : {1, 2}) {
    const std::vector<std::string> flags = {"--workers", absl::StrCat(workers)};
    // 157 examples: an epoch's last step has fewer batches, the last of them smaller.
    WriteJob({{"batch_size: 8", "batch_size: 24"}});
    const auto large = Train(flags, absl::StrCat("large", workers));
    WriteJob({{"batch_size: 8", "batch_size: 8 accumulate_batches: 3"}});
    const auto small = Train(flags, absl::StrCat("small", workers));
    EXPECT_EQ(small["steps"], large["steps"]);
    EXPECT_EQ(small["examples"], 3 * 157);
    ExpectNear(absl::StrCat("large", workers), absl::StrCat("small", workers));
  }
}

// The servers restore what one worker's own steps subtracted, so its steps are those of plain SGD.
TEST_F(ModesTest, LocalStepsOfOneWorkerAreStepsOfSgd) {
  WriteJob();
  const auto sync = Train({}, "sync");
  // 157 examples in 20 batches; the last round of an epoch has four.
  const auto local = Train({"--mode", "local_sgd", "--local_steps", "8"}, "local");
  EXPECT_EQ(sync["steps"], 60);
  EXPECT_EQ(local["steps"], 9);
  EXPECT_EQ(local["mode"], "local_sgd");
  EXPECT_EQ(local["local_steps"], 8);
  ExpectNear("sync", "local");
}

TEST_F(ModesTest, LocalStepsMayBeOfSeveralBatchesEach) {
  WriteJob({{"batch_size: 8", "batch_size: 8 accumulate_batches: 2"}});
  const auto sync = Train({}, "sync");
  const auto local = Train({"--mode", "local_sgd", "--local_steps", "4"}, "local");
  EXPECT_EQ(sync["steps"], 30);
  EXPECT_EQ(local["steps"], 9);
  ExpectNear("sync", "local");
}

TEST_F(ModesTest, LocalSgdLearnsWithSomeWorkersShortOfData) {
  WriteJob();
  const auto summary = Train({"--workers", "3", "--mode", "local_sgd", "--local_steps", "4"});
  EXPECT_EQ(summary["examples"], 3 * 157);
  EXPECT_GE(summary["test_accuracy"], 0.9);
}

// Workers take different numbers of steps. One without data must not block those that may not get ahead of it.
TEST_F(ModesTest, BoundedEndsThoughWorkersRunOutOfData) {
  WriteJob({{"training {", "training { wait_seconds: 5"}});
  for (const char* steps_ahead : {"0", "4"}) {
    const auto summary = Train({"--workers", "4", "--servers", "2", "--mode", "bounded", "--steps_ahead", steps_ahead},
                               absl::StrCat("run", steps_ahead));
    EXPECT_EQ(summary["mode"], "bounded");
    EXPECT_EQ(absl::StrCat(summary["steps_ahead"].get<int>()), steps_ahead);
    EXPECT_EQ(summary["examples"], 3 * 157);
    EXPECT_GE(summary["test_accuracy"], 0.9);
  }
}

TEST_F(ModesTest, AQuorumTakesEveryWorkerThroughTheSameSteps) {
  WriteJob();
  const auto summary = Train({"--workers", "4", "--quorum", "3"});
  EXPECT_EQ(summary["quorum"], 3);
  EXPECT_EQ(summary["examples"], 3 * 157);
  EXPECT_EQ(summary["steps"], 15);
  EXPECT_GE(summary["test_accuracy"], 0.9);
}

TEST_F(ModesTest, AJobMayComeThroughEveryCodec) {
  WriteJob();
  double fp32 = 0;
  for (const std::string codec : {"fp32", "fp16", "bf16", "int8", "top_k", "sign"}) {
    const auto summary = Train({"--workers", "2", "--codec", codec}, codec);
    EXPECT_EQ(summary["codec"], codec);
    const double bytes = summary["bytes_sent_per_step"];
    EXPECT_GT(bytes, 0);
    if (codec == "fp32") {
      fp32 = bytes;
    } else {
      EXPECT_LT(bytes, fp32) << codec;
    }
  }
}

// Without a total a schedule ends with the job, regardless of how the workers share the updates.
TEST_F(ModesTest, AScheduleComesToItsEndInEveryMode) {
  WriteJob({{"optimizer {", "optimizer { schedule { polynomial {} }"}});
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--mode", "sync"}, {"--mode", "async"}, {"--mode", "bounded", "--steps_ahead", "2"}}) {
    const auto summary = Train(flags, flags[1]);
    // 60 updates, each lowering the rate by a 60th of 0.2: the last is the lowest above 0. Without common steps the
    // position in the data is known only up to the leases in flight.
    const int last = flags[1] == "sync" ? 2 : 6;
    EXPECT_LE(summary["learning_rate"], 0.2 * last / 60) << flags[1];
  }
}

}  // namespace
}  // namespace ballast
