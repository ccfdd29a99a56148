// SPDX-License-Identifier: Apache-2.0
#include "gtest/gtest.h"
#include "worker/model/testing/gradient_check.h"

namespace {

TEST(SiluTest, GradientsAreTheDifferencesOfTheLoss) {
  for (const char* beta : {"1", "1.5", "-0.5"}) {
    const std::string model = std::string("layers { dense { units: 6 } } layers { custom { type: 'silu' numbers {") +
                              " key: 'beta' value: " + beta +
                              " } } } layers { dense { units: 3 } } loss { softmax_cross_entropy {} }";
    EXPECT_EQ(ballast::CheckGradients(model, 5).ToString(), "OK") << model;
  }
}

TEST(SiluTest, RefusesASlopeOutOfRange) {
  const std::string model =
      "layers { dense { units: 1 } } layers { custom { type: 'silu' numbers { key: 'beta' value: 101 } } } "
      "loss { mean_squared_error {} }";
  EXPECT_EQ(ballast::CheckGradients(model, 5).message(), "layer \"custom1\": beta is 101, want -100 to 100");
}

}  // namespace
