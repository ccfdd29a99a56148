// SPDX-License-Identifier: Apache-2.0
// Checks the poolings of every device against their definition.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "worker/device/conformance/device_conformance_test.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsNan;

struct Pooling {
  int64_t examples;
  PoolShape shape;
};

const Pooling kPoolings[] = {
    {1, {{1, 1, 1}, {}}},
    {3, {{4, 6, 5}, {2, 2, 2, 2}}},
    {2, {{7, 5, 3}, {3, 3, 2, 2, 1, 1}}},  // overlapping, padded
    {2, {{7, 8, 2}, {2, 3, 3, 2, 0, 1}}},  // pixels that no window covers
    {5, {{7, 7, 33}, {7, 7}}},             // global
    {2, {{17, 19, 3}, {17, 19}}},          // a window of more than 256 pixels
    {2, {{20, 20, 3}, {17, 17, 1, 1, 5, 5}}},
    {65, {{14, 14, 64}, {2, 2, 2, 2}}},  // large
    {0, {{4, 4, 2}, {2, 2, 2, 2}}},      // no images
};

// Calls visit(index in y of the window's position and channel, indices in x of its elements) for each window.
template <typename Visit>
void ForEachWindow(const Pooling& p, Visit visit) {
  const auto& [in, w] = p.shape;
  const ImageShape out = p.shape.output();
  for (int64_t e = 0; e < p.examples; ++e)
    for (int64_t i = 0; i < out.height; ++i)
      for (int64_t j = 0; j < out.width; ++j)
        for (int64_t k = 0; k < in.channels; ++k) {
          std::vector<int64_t> seen;
          for (int64_t ki = 0; ki < w.height; ++ki)
            for (int64_t kj = 0; kj < w.width; ++kj) {
              const int64_t row = i * w.vertical_stride + ki - w.vertical_padding;
              const int64_t column = j * w.horizontal_stride + kj - w.horizontal_padding;
              if (row < 0 || row >= in.height || column < 0 || column >= in.width) continue;
              seen.push_back(((e * in.height + row) * in.width + column) * in.channels + k);
            }
          visit(((e * out.height + i) * out.width + j) * in.channels + k, seen);
        }
}

}  // namespace

TEST_P(DeviceConformanceTest, MaxPoolsAndTheirGradientsAgreeWithTheDefinition) {
  for (const Pooling& p : kPoolings) {
    SCOPED_TRACE(testing::Message() << "pooling " << &p - kPoolings);
    const int64_t in = p.shape.input.elements(), out = p.shape.output().elements();
    std::vector<float> x = Random(p.examples * in, 1);
    // Rounds to create equal values.
    for (float& value : x) value = std::round(4 * value);
    const std::vector<float> dy = Random(p.examples * out, 2);
    std::vector<float> want(dy.size());
    std::vector<double> want_dx(x.size());
    ForEachWindow(p, [&](int64_t at, const std::vector<int64_t>& seen) {
      int64_t largest = seen[0];
      for (const int64_t pixel : seen) {
        if (x[pixel] > x[largest]) largest = pixel;
      }
      want[at] = x[largest];
      want_dx[largest] += dy[at];
    });
    const Matrix images = Put(p.examples, in, x);
    const Matrix y = Put(p.examples, out, Random(dy.size(), 3)), dx = Put(p.examples, in, Random(x.size(), 4));
    device().MaxPool(p.shape, images, nullptr, y);
    EXPECT_EQ(Get(y), want);
    const Matrix again = Zeros(p.examples, out), positions = ZeroFloats(p.examples, p.shape.position_floats());
    device().MaxPool(p.shape, images, positions.buffer, again);
    EXPECT_EQ(Get(again), want);
    device().MaxPoolBackward(p.shape, *positions.buffer, Put(p.examples, out, dy), dx);
    ExpectNear(Get(dx), want_dx);
  }
}

TEST_P(DeviceConformanceTest, MaxPoolPassesNanAndInfinityOn) {
  const PoolShape shape{{1, 3, 2}, {1, 3}};
  const Matrix x = Put(1, 6, {1, -INFINITY, NAN, -INFINITY, NAN, -INFINITY});
  const Matrix y = Zeros(1, 2), dx = Zeros(1, 6), positions = ZeroFloats(1, shape.position_floats());
  device().MaxPool(shape, x, positions.buffer, y);
  EXPECT_THAT(Get(y), ElementsAre(IsNan(), -INFINITY));
  device().MaxPoolBackward(shape, *positions.buffer, Put(1, 2, {5, 7}), dx);
  EXPECT_THAT(Get(dx), ElementsAre(0, 7, 5, 0, 0, 0));
}

TEST_P(DeviceConformanceTest, AveragePoolsAndTheirGradientsAgreeWithTheDefinition) {
  for (const Pooling& p : kPoolings) {
    SCOPED_TRACE(testing::Message() << "pooling " << &p - kPoolings);
    const int64_t in = p.shape.input.elements(), out = p.shape.output().elements();
    const std::vector<float> x = Random(p.examples * in, 1), dy = Random(p.examples * out, 2);
    std::vector<double> want(dy.size()), want_dx(x.size());
    ForEachWindow(p, [&](int64_t at, const std::vector<int64_t>& seen) {
      for (const int64_t pixel : seen) {
        want[at] += double{x[pixel]} / seen.size();
        want_dx[pixel] += double{dy[at]} / seen.size();
      }
    });
    const Matrix y = Put(p.examples, out, Random(dy.size(), 3)), dx = Put(p.examples, in, Random(x.size(), 4));
    device().AveragePool(p.shape, Put(p.examples, in, x), y);
    ExpectNear(Get(y), want);
    device().AveragePoolBackward(p.shape, Put(p.examples, out, dy), dx);
    ExpectNear(Get(dx), want_dx);
  }
}

}  // namespace ballast
