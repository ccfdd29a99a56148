// SPDX-License-Identifier: Apache-2.0
#include "client/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

std::unique_ptr<const Codec> Make(v1::Encoding encoding, float top_k_fraction = 0) {
  v1::Codec config;
  config.set_gradients(encoding);
  config.set_top_k_fraction(top_k_fraction);
  return *MakeGradientCodec(config);
}

std::vector<float> Decoded(const Codec& codec, const std::string& payload, size_t elements) {
  std::vector<float> values(elements);
  const absl::string_view piece = payload;
  const absl::Status status = codec.Decode({&piece, 1}, absl::MakeSpan(values));
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

std::vector<float> Sent(ErrorFeedback& feedback, absl::Span<const float> gradient, uint64_t seed = 1,
                        uint32_t slice_index = 0) {
  std::string payload(feedback.codec().EncodedBytes(gradient.size()), '\0');
  EXPECT_EQ(feedback.Encode(3, slice_index, gradient, seed, payload.data()), payload.size());
  return Decoded(feedback.codec(), payload, gradient.size());
}

std::vector<float> SentWithoutFeedback(const Codec& codec, absl::Span<const float> gradient, uint64_t seed) {
  std::string payload(codec.EncodedBytes(gradient.size()), '\0');
  codec.Encode(gradient, seed, payload.data());
  return Decoded(codec, payload, gradient.size());
}

// Returns the distance between the sums of the sent and the true gradients after each of 500 noisy gradients of one
// slice, whose mean differs between elements, like a real one's.
template <typename Send>
std::vector<double> DistancesOver500Gradients(Send send) {
  constexpr size_t kElements = 1500;
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  std::vector<float> mean(kElements), gradient(kElements);
  for (float& each : mean) each = 0.3f * normal(random);
  std::vector<double> off(kElements, 0.0), distances;
  for (int t = 0; t < 500; ++t) {
    for (size_t i = 0; i < kElements; ++i) gradient[i] = mean[i] + normal(random);
    const std::vector<float> sent = send(gradient, t);
    double squares = 0;
    for (size_t i = 0; i < kElements; ++i) {
      off[i] += double{gradient[i]} - sent[i];
      squares += off[i] * off[i];
    }
    distances.push_back(std::sqrt(squares));
  }
  return distances;
}

double Largest(absl::Span<const double> distances) { return *std::max_element(distances.begin(), distances.end()); }

struct Case {
  std::string name;
  v1::Encoding encoding;
  // Bound of the distance, in norms of a gradient.
  double bound;
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

class ErrorFeedbackTest : public testing::TestWithParam<Case> {};

TEST_P(ErrorFeedbackTest, SumOfWhatIsSentStaysWithinAResidualOfWhatWasMeant) {
  ErrorFeedback feedback(Make(GetParam().encoding, 0.05f));
  const std::vector<double> distances =
      DistancesOver500Gradients([&](const auto& gradient, int t) { return Sent(feedback, gradient, t); });
  // sqrt(1500 elements * (variance of the mean + variance of the noise)).
  constexpr double kNorm = 40.4;
  EXPECT_LT(Largest(distances), GetParam().bound * kNorm);
  // The distance stops growing.
  EXPECT_LT(Largest(absl::MakeConstSpan(distances).subspan(400)),
            1.1 * Largest(absl::MakeConstSpan(distances).subspan(200, 200)));
}

TEST_P(ErrorFeedbackTest, WithoutFeedbackTheSumDriftsAway) {
  const auto codec = Make(GetParam().encoding, 0.05f);
  const std::vector<double> distances =
      DistancesOver500Gradients([&](const auto& gradient, int t) { return SentWithoutFeedback(*codec, gradient, t); });
  // Int8 is unbiased, so its errors only add up like a random walk.
  EXPECT_GT(distances[499], (GetParam().encoding == v1::ENCODING_INT8 ? 1.7 : 3.0) * distances[99]);
  ErrorFeedback feedback(Make(GetParam().encoding, 0.05f));
  const std::vector<double> with =
      DistancesOver500Gradients([&](const auto& gradient, int t) { return Sent(feedback, gradient, t); });
  EXPECT_GT(distances[499], 5 * with[499]);
}

TEST_P(ErrorFeedbackTest, WhatWasLostIsSentWithLaterGradients) {
  ErrorFeedback feedback(Make(GetParam().encoding, 0.3f));
  std::vector<float> total = Sent(feedback, {1.0f, 0.3f, -0.7f, 0.0f, 0.05f});
  for (int t = 0; t < 40; ++t) {
    const std::vector<float> sent = Sent(feedback, std::vector<float>(5, 0.0f), t);
    for (size_t i = 0; i < sent.size(); ++i) total[i] += sent[i];
  }
  const std::vector<float> want = {1.0f, 0.3f, -0.7f, 0.0f, 0.05f};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(total[i], want[i], 0.02) << i;
}

TEST_P(ErrorFeedbackTest, SlicesHaveResidualsOfTheirOwn) {
  ErrorFeedback feedback(Make(GetParam().encoding, 0.3f));
  const std::vector<float> gradient = {1.0f, 0.5f, -0.7f, 0.2f, 0.05f};
  const std::vector<float> first = Sent(feedback, gradient, 1, /*slice_index=*/0);
  EXPECT_EQ(Sent(feedback, gradient, 1, /*slice_index=*/1), first);
  EXPECT_NE(Sent(feedback, gradient, 1, /*slice_index=*/0), first);
}

TEST_P(ErrorFeedbackTest, GradientThatIsNotFiniteSpoilsNoLaterOne) {
  ErrorFeedback feedback(Make(GetParam().encoding, 0.05f));
  for (float special : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    // More elements than top_k sends in one payload.
    const std::vector<float> bad(100, special);
    std::string payload(feedback.codec().EncodedBytes(100), '\0');
    feedback.Encode(3, 0, bad, 1, payload.data());
    EXPECT_EQ(Sent(feedback, std::vector<float>(100, 0.0f)), std::vector<float>(100, 0.0f));
  }
}

TEST_P(ErrorFeedbackTest, DifferentSlicesAreEncodedOnDifferentThreads) {
  ErrorFeedback feedback(Make(GetParam().encoding, 0.05f)), alone(Make(GetParam().encoding, 0.05f));
  const std::vector<float> gradient(2000, 0.25f);
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> sent(4);
  for (uint32_t slice = 0; slice < 4; ++slice) {
    threads.emplace_back([&, slice] {
      for (int t = 0; t < 50; ++t) sent[slice] = Sent(feedback, gradient, t, slice);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<float> want;
  for (int t = 0; t < 50; ++t) want = Sent(alone, gradient, t);
  for (const std::vector<float>& each : sent) EXPECT_EQ(each, want);
}

INSTANTIATE_TEST_SUITE_P(Feedback, ErrorFeedbackTest,
                         testing::Values(Case{"int8", v1::ENCODING_INT8, 0.02}, Case{"top_k", v1::ENCODING_TOP_K, 4},
                                         Case{"sign", v1::ENCODING_SIGN, 2}),
                         [](const auto& info) { return info.param.name; });

TEST(ErrorFeedbackBypassTest, CodecThatWantsNoneEncodesEachGradientByItself) {
  for (v1::Encoding encoding : {v1::ENCODING_FP32, v1::ENCODING_FP16, v1::ENCODING_BF16}) {
    ErrorFeedback feedback(Make(encoding));
    const std::vector<float> gradient(300, 1.0f / 3);
    const std::vector<float> first = Sent(feedback, gradient);
    EXPECT_EQ(first, SentWithoutFeedback(feedback.codec(), gradient, 1));
    EXPECT_EQ(Sent(feedback, gradient), first);
  }
}

}  // namespace
}  // namespace ballast
