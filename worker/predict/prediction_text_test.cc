// SPDX-License-Identifier: Apache-2.0
#include "worker/predict/prediction_text.h"

#include <gmock/gmock.h>

#include <cmath>

namespace ballast {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

std::string Line(const PredictionText& text, const std::vector<float>& outputs) {
  std::string line = text.header();
  text.Append(outputs, line);
  return line;
}

TEST(PredictionTextTest, ANumberIsTheShortestTextOfTheSameFloat) {
  EXPECT_EQ(Line({{}, false}, {0.1f}), "prediction\n0.1\n");
  EXPECT_EQ(Line({{}, false}, {16777216}), "prediction\n16777216\n");
  EXPECT_EQ(Line({{}, true}, {-2.5f}), "{\"prediction\":-2.5}\n");
  EXPECT_EQ(Line({{}, true}, {INFINITY}), "{\"prediction\":null}\n");
}

TEST(PredictionTextTest, AClassComesWithTheProbabilitiesOfAll) {
  EXPECT_EQ(Line({{"cat", "dog"}, false}, {3, 3}), "class,p_cat,p_dog\ncat,0.5,0.5\n");
  EXPECT_EQ(Line({{"cat", "dog"}, false}, {-1000, 1000}), "class,p_cat,p_dog\ndog,0,1\n");
  EXPECT_EQ(Line({{"cat", "dog"}, true}, {0, 0}), "{\"class\":\"cat\",\"probabilities\":{\"cat\":0.5,\"dog\":0.5}}\n");
}

TEST(PredictionTextTest, QuotesNamesThatTheFormatWouldSplit) {
  EXPECT_EQ(Line({{"a,b", "say \"hi\""}, false}, {0, 1000}),
            "class,\"p_a,b\",\"p_say \"\"hi\"\"\"\n\"say \"\"hi\"\"\",0,1\n");
  EXPECT_EQ(Line({{"a\"", "b\n"}, true}, {0, 1000}),
            "{\"class\":\"b\\n\",\"probabilities\":{\"a\\\"\":0,\"b\\n\":1}}\n");
}

TEST(PredictionTextTest, NamesNoClassForOutputsThatAreNoNumbers) {
  EXPECT_EQ(Line({{"a", "b"}, false}, {INFINITY, -INFINITY}), "class,p_a,p_b\n,nan,nan\n");
  EXPECT_EQ(Line({{"a", "b"}, true}, {NAN, 1}), "{\"class\":null,\"probabilities\":{\"a\":null,\"b\":null}}\n");
}

TEST(SoftmaxTest, DoesNotOverflow) {
  EXPECT_THAT(Softmax({1e30f, 1e30f}), ElementsAre(0.5, 0.5));
  EXPECT_THAT(Softmax({0, 1, 2}),
              ElementsAre(DoubleNear(0.09003057, 1e-8), DoubleNear(0.24472847, 1e-8), DoubleNear(0.66524096, 1e-8)));
}

}  // namespace
}  // namespace ballast
