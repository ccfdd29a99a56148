// SPDX-License-Identifier: Apache-2.0
// Jobs with a layer that only their worker knows: examples/custom_layer, by `ballast launch`.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class CustomLayerTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    setenv("BALLAST_WORKER_BINARY", Binary("examples/custom_layer/ballast_worker").c_str(), 1);
  }

  // Writes the job with a custom layer in place of its relu.
  void WriteCustomJob(const std::string& custom) const {
    WriteJob({{"relu {}", absl::StrCat("custom { ", custom, " }")}});
  }

  // Launches the job, which must fail with exit status 2 and an error that contains `error`.
  void ExpectRefused(const std::string& custom, const std::string& error) const {
    WriteCustomJob(custom);
    ChildProcess launch = Launch({}, "run-refused");
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 2") << launch.output();
    EXPECT_THAT(launch.output(), HasSubstr(absl::StrCat("layer \"custom1\": ", error)));
  }
};

TEST_F(CustomLayerTest, TrainsOnServersThatDoNotKnowIt) {
  WriteCustomJob("type: 'silu' numbers { key: 'beta' value: 1.5 }");
  Train({"--servers", "2", "--workers", "2"});
  EXPECT_GE(Printed().test_accuracy.value_or(0), 0.95);
  EXPECT_THAT(Read("run/logs/worker-0.log"), HasSubstr("4 -> dense 16 -> silu 1.5 -> dense 3"));
  // The run's own job file repeats the run.
  EXPECT_THAT(Read("run/job.textproto"), HasSubstr("type: \"silu\""));
}

TEST_F(CustomLayerTest, TheNumbersReachTheLayer) {
  WriteCustomJob("type: 'silu' numbers { key: 'beta' value: 1.5 }");
  Train({}, "first");
  WriteCustomJob("type: 'silu' numbers { key: 'beta' value: 0.5 }");
  Train({}, "second");
  EXPECT_NE(Model("first")[0].values, Model("second")[0].values);
}

TEST_F(CustomLayerTest, AnUnknownTypeIsRefusedAndTheKnownOnesAreNamed) {
  ExpectRefused("type: 'swish'", "custom.type is \"swish\", want silu");
}

TEST_F(CustomLayerTest, AWorkerWithoutLayersOfItsOwnSaysSo) {
  setenv("BALLAST_WORKER_BINARY", Binary("worker/ballast_worker").c_str(), 1);
  ExpectRefused("type: 'silu'",
                "custom.type is \"silu\", want none: this worker has no custom layers; BALLAST_WORKER_BINARY names one "
                "that has");
}

TEST_F(CustomLayerTest, ANumberThatTheLayerDoesNotReadIsRefused) {
  ExpectRefused("type: 'silu' numbers { key: 'bta' value: 1.5 }", "custom.numbers has \"bta\", want beta for silu");
}

TEST_F(CustomLayerTest, ATypeIsRequired) {
  WriteCustomJob("");
  ChildProcess launch = Launch({});
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 2") << launch.output();
  EXPECT_THAT(launch.output(),
              HasSubstr("model.layers[1].custom.type: got nothing, want the name of a registered layer"));
}

}  // namespace
}  // namespace ballast
