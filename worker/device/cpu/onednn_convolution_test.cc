// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/onednn_convolution.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/device/cpu/im2col_convolution.h"

namespace ballast {
namespace {

// Memory with known values before and behind what an operation may write.
class Fenced {
 public:
  explicit Fenced(int64_t floats) : memory_(floats + 2 * kFence, kKnown), floats_(floats) {}

  float* data() { return memory_.data() + kFence; }
  bool intact() const {
    const auto known = [](float value) { return value == kKnown; };
    return std::all_of(memory_.begin(), memory_.begin() + kFence, known) &&
           std::all_of(memory_.end() - kFence, memory_.end(), known);
  }
  std::vector<float> values() { return {data(), data() + floats_}; }

 private:
  static constexpr int64_t kFence = 64;
  static constexpr float kKnown = -77;
  std::vector<float> memory_;
  const int64_t floats_;
};

std::vector<float> Numbers(int64_t count) {
  std::vector<float> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i % 7) - 3;
  return numbers;
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-3) << what << " at " << i;
}

// Each direction gives what im2col gives, and writes nowhere else.
void Check(Convolution& onednn, Convolution& im2col, const ConvShape& shape) {
  constexpr int64_t kExamples = 3;
  const ImageShape output = shape.output();
  const std::string what = absl::StrCat(shape.input.channels, " to ", shape.filters, " channels, window ",
                                        shape.window.height, "x", shape.window.width, ", strides ",
                                        shape.window.vertical_stride, " and ", shape.window.horizontal_stride);
  const int64_t pixels = kExamples * shape.input.height * shape.input.width;
  const std::vector<float> x = Numbers(pixels * shape.input.channels), bias = Numbers(shape.filters);
  const std::vector<float> filters =
      Numbers(shape.filters * shape.window.height * shape.window.width * shape.input.channels);
  const std::vector<float> dy = Numbers(kExamples * output.height * output.width * shape.filters);
  std::vector<std::vector<float>> results[2];
  int which = 0;
  for (Convolution* convolution : {&onednn, &im2col}) {
    Fenced y(dy.size()), dx(x.size()), dfilters(filters.size()), dbias(bias.size());
    convolution->Forward(shape, kExamples, x.data(), filters.data(), bias.data(), y.data());
    convolution->BackwardData(shape, kExamples, dy.data(), filters.data(), dx.data());
    convolution->BackwardFilters(shape, kExamples, x.data(), dy.data(), dfilters.data(), dbias.data());
    EXPECT_TRUE(y.intact()) << what;
    EXPECT_TRUE(dx.intact()) << what;
    EXPECT_TRUE(dfilters.intact()) << what;
    EXPECT_TRUE(dbias.intact()) << what;
    results[which++] = {y.values(), dx.values(), dfilters.values(), dbias.values()};
  }
  for (size_t i = 0; i < results[0].size(); ++i) ExpectNear(results[0][i], results[1][i], absl::StrCat(what, ": ", i));
}

TEST(OneDnnConvolutionTest, WritesOnlyItsResults) {
  const auto onednn = MakeOneDnnConvolution(1), im2col = MakeIm2colConvolution();
  for (int64_t channels = 1; channels <= 33; ++channels) {
    for (const int64_t filters : {3, 6, 8, 16}) {
      for (const auto& [window, stride] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 1}, {3, 2}}) {
        ConvShape shape;
        shape.input = {6, 9, channels};
        shape.window.height = shape.window.width = window;
        shape.window.vertical_stride = stride;
        shape.filters = filters;
        Check(*onednn, *im2col, shape);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace ballast
