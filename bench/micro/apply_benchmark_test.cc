// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/apply_benchmark.h"

#include "ballast/v1/tensor.pb.h"
#include "common/job/kind_names.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(ApplyBenchmarkTest, MeasuresEveryOptimizer) {
  const auto results = RunApplyBenchmark({.elements = 10001, .seconds = 0});
  ASSERT_TRUE(results.ok()) << results.status();
  std::vector<std::string> names;
  for (const ApplyResult& result : *results) {
    names.push_back(result.optimizer);
    EXPECT_GT(result.gb_per_second, 0);
    EXPECT_GT(result.limit_gb_per_second, 0);
    EXPECT_NEAR(result.ratio, result.gb_per_second / result.limit_gb_per_second, 1e-9);
  }
  EXPECT_EQ(names, KindNames(*v1::Optimizer::descriptor(), v1::PARAMETER_KIND_TENSOR));
}

TEST(ApplyBenchmarkTest, RefusesOptionsOutOfRange) {
  EXPECT_EQ(RunApplyBenchmark({.elements = 0}).status().message(), "elements: got 0, want 1 to 1073741824");
  EXPECT_EQ(RunApplyBenchmark({.seconds = -1}).status().message(), "seconds: got -1, want 0 to 3600");
}

}  // namespace
}  // namespace ballast
