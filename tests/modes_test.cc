// SPDX-License-Identifier: Apache-2.0
// What a job's modes, codecs and ways to a step promise, by `ballast launch` with real servers and workers.
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/run/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;
using ::testing::SizeIs;

class ModesTest : public JobTest {
 protected:
  // Runs to the end; the object that it prints.
  nlohmann::json Train(std::vector<std::string> flags, const std::string& run = "run") {
    flags.push_back("--json");
    ChildProcess launch = Launch(flags, run);
    const ExitStatus status = launch.Wait();
    EXPECT_EQ(status.ToString(), "ended with status 0") << launch.output();
    return nlohmann::json::parse(Read("out"), nullptr, /*allow_exceptions=*/false);
  }

  std::vector<LoadedTensor> Model(const std::string& run) const {
    auto model = ReadSafetensors(Path(run + "/model.safetensors"));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->tensors : std::vector<LoadedTensor>();
  }

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
    // 157 examples: the last step of an epoch is made from fewer batches, the last of them smaller.
    WriteJob({{"batch_size: 8", "batch_size: 24"}});
    const auto large = Train(flags, absl::StrCat("large", workers));
    WriteJob({{"batch_size: 8", "batch_size: 8 accumulate_batches: 3"}});
    const auto small = Train(flags, absl::StrCat("small", workers));
    EXPECT_EQ(small["steps"], large["steps"]);
    EXPECT_EQ(small["examples"], 3 * 157);
    ExpectNear(absl::StrCat("large", workers), absl::StrCat("small", workers));
  }
}

}  // namespace
}  // namespace ballast
