// SPDX-License-Identifier: Apache-2.0
// Checks the convolutions of every device against their defining sums.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "worker/device/conformance/device_conformance_test.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct Convolution {
  int64_t examples;
  ConvShape shape;
};

void PrintTo(const Convolution& c, std::ostream* out) {
  const auto& [image, w, filters] = c.shape;
  *out << c.examples << " images " << image.height << "x" << image.width << "x" << image.channels << ", " << filters
       << " filters " << w.height << "x" << w.width << ", stride " << w.vertical_stride << "x" << w.horizontal_stride
       << ", padding " << w.vertical_padding << "x" << w.horizontal_padding;
}

// One of each kind, and random ones.
std::vector<Convolution> Convolutions() {
  std::vector<Convolution> all = {
      {1, {{1, 1, 1}, {}, 1}},                       // a product of two numbers
      {5, {{3, 5, 7}, {}, 3}},                       // 1 x 1
      {3, {{7, 7, 3}, {3, 3, 1, 1, 1, 1}, 5}},       // output of the same size
      {2, {{9, 6, 2}, {3, 2, 2, 3, 1, 0}, 4}},       // height and width always differ
      {2, {{5, 5, 2}, {5, 5}, 3}},                   // one position
      {2, {{2, 2, 3}, {5, 5, 1, 1, 4, 4}, 2}},       // mostly padding
      {3, {{8, 8, 16}, {1, 1, 2, 2, 0, 0}, 32}},     // a projection
      {7, {{28, 28, 1}, {5, 5, 1, 1, 2, 2}, 32}},    // a first layer
      {5, {{28, 28, 1}, {3, 3, 1, 1, 1, 1}, 24}},    // another
      {2, {{20, 600, 3}, {3, 3, 2, 2, 1, 1}, 2}},    // a wide one
      {1, {{3, 3000, 1}, {3, 3, 1, 1, 1, 1}, 4}},    // wider than a GPU's shared memory
      {33, {{14, 14, 32}, {3, 3, 1, 1, 1, 1}, 48}},  // large
      {2, {{11, 13, 129}, {3, 3, 2, 2, 1, 1}, 65}},  // odd
      {0, {{4, 4, 2}, {3, 3, 1, 1, 1, 1}, 3}},       // no images
  };
  std::mt19937 generator(4);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(generator);
  };
  while (all.size() < 40) {
    Convolution c{draw(1, 5), {{draw(1, 12), draw(1, 12), draw(1, 20)}, {}, draw(1, 20)}};
    Window& w = c.shape.window;
    w = {draw(1, 5), draw(1, 5), draw(1, 3), draw(1, 3), 0, 0};
    w.vertical_padding = draw(0, w.height - 1);
    w.horizontal_padding = draw(0, w.width - 1);
    if (Fits(w, c.shape.input)) all.push_back(c);
  }
  return all;
}

// Calls visit(index in x, index in the filters, index in y) for each product in the sums.
template <typename Visit>
void ForEachProduct(const Convolution& c, Visit visit) {
  const auto& [in, w, filters] = c.shape;
  const ImageShape out = c.shape.output();
  for (int64_t e = 0; e < c.examples; ++e)
    for (int64_t i = 0; i < out.height; ++i)
      for (int64_t j = 0; j < out.width; ++j)
        for (int64_t ki = 0; ki < w.height; ++ki)
          for (int64_t kj = 0; kj < w.width; ++kj) {
            const int64_t row = i * w.vertical_stride + ki - w.vertical_padding;
            const int64_t column = j * w.horizontal_stride + kj - w.horizontal_padding;
            if (row < 0 || row >= in.height || column < 0 || column >= in.width) continue;
            for (int64_t f = 0; f < filters; ++f)
              for (int64_t k = 0; k < in.channels; ++k)
                visit(((e * in.height + row) * in.width + column) * in.channels + k,
                      ((f * w.height + ki) * w.width + kj) * in.channels + k,
                      ((e * out.height + i) * out.width + j) * filters + f);
          }
}

class Convolved {
 public:
  Convolved(const Convolution& c, const std::vector<float>& x, const std::vector<float>& filters,
            const std::vector<float>& dy)
      : y(dy.size()), dx(x.size()), dfilters(filters.size()), dbias(c.shape.filters) {
    ForEachProduct(c, [&](int64_t at_x, int64_t at_filter, int64_t at_y) {
      y.Add(at_y, double{x[at_x]} * filters[at_filter]);
      dx.Add(at_x, double{dy[at_y]} * filters[at_filter]);
      dfilters.Add(at_filter, double{dy[at_y]} * x[at_x]);
    });
    for (size_t i = 0; i < dy.size(); ++i) dbias.Add(i % c.shape.filters, dy[i]);
  }

  Sums y, dx, dfilters, dbias;
};

}  // namespace

TEST_P(DeviceConformanceTest, ConvolutionsAndTheirGradientsAgreeWithTheSumsOfProducts) {
  for (const Convolution& c : Convolutions()) {
    SCOPED_TRACE(testing::PrintToString(c));
    const int64_t in = c.shape.input.elements(), out = c.shape.output().elements(), filters = c.shape.filters;
    const std::vector<float> x = Random(c.examples * in, 1), dy = Random(c.examples * out, 2);
    const std::vector<float> w = Random(filters * c.shape.filter_elements(), 3), b = Random(filters, 4);
    Convolved want(c, x, w, dy);

    const Matrix images = Put(c.examples, in, x), gradient = Put(c.examples, out, dy);
    const Matrix weights = PutFloats(filters, c.shape.filter_elements(), w), bias = PutFloats(1, filters, b);
    const Matrix y = Put(c.examples, out, Random(c.examples * out, 5)), dx = Put(c.examples, in, Random(x.size(), 6));
    const Matrix dw = PutFloats(filters, c.shape.filter_elements(), Random(w.size(), 7));
    const Matrix db = PutFloats(1, filters, Random(filters, 8));
    device().Convolve(c.shape, images, *weights.buffer, nullptr, y);
    ExpectSums(Get(y), want.y);
    device().Convolve(c.shape, images, *weights.buffer, bias.buffer, y);
    for (size_t i = 0; i < dy.size(); ++i) want.y.Add(i, b[i % filters]);
    ExpectSums(Get(y), want.y);
    device().ConvolveBackwardData(c.shape, gradient, *weights.buffer, dx);
    ExpectSums(Get(dx), want.dx);
    device().ConvolveBackwardFilters(c.shape, images, gradient, *dw.buffer, db.buffer);
    ExpectSums(Get(dw), want.dfilters);
    ExpectSums(Get(db), want.dbias);
    const Matrix again = PutFloats(filters, c.shape.filter_elements(), Random(w.size(), 7));
    device().ConvolveBackwardFilters(c.shape, images, gradient, *again.buffer, nullptr);
    ExpectSums(Get(again), want.dfilters);
  }
}

TEST_P(DeviceConformanceTest, AConvolutionIsACrossCorrelation) {
  const ConvShape shape{{1, 4, 1}, {1, 2}, 1};
  const Matrix y = Zeros(1, 3);
  device().Convolve(shape, Put(1, 4, {1, 10, 100, 1000}), *PutFloats(1, 2, {1, 2}).buffer, nullptr, y);
  EXPECT_THAT(Get(y), ElementsAre(21, 210, AsActivation(2100)));
}

TEST_P(DeviceConformanceTest, FilterGradientsOverNoImagesAreZero) {
  const ConvShape shape{{4, 4, 2}, {3, 3}, 3};
  const Matrix dfilters = PutFloats(3, 18, std::vector<float>(54, 9)), dbias = PutFloats(1, 3, {9, 9, 9});
  device().ConvolveBackwardFilters(shape, Zeros(0, 32), Zeros(0, 12), *dfilters.buffer, dbias.buffer);
  EXPECT_THAT(Get(dfilters), Each(0.0f));
  EXPECT_THAT(Get(dbias), Each(0.0f));
}

TEST_P(DeviceConformanceTest, TheSameConvolutionsGiveTheSameBits) {
  const ConvShape shape{{14, 14, 32}, {3, 3, 1, 1, 1, 1}, 48};
  const Matrix x = Put(64, shape.input.elements(), Random(64 * shape.input.elements(), 1));
  const Matrix dy = Put(64, shape.output().elements(), Random(64 * shape.output().elements(), 2));
  const Matrix w = PutFloats(48, shape.filter_elements(), Random(48 * shape.filter_elements(), 3));
  std::vector<std::vector<float>> results[2];
  for (auto& result : results) {
    const Matrix y = Zeros(dy.rows, dy.columns), dx = Zeros(x.rows, x.columns), dw = ZeroFloats(w.rows, w.columns);
    const Matrix db = ZeroFloats(1, 48);
    device().Convolve(shape, x, *w.buffer, nullptr, y);
    device().ConvolveBackwardData(shape, dy, *w.buffer, dx);
    device().ConvolveBackwardFilters(shape, x, dy, *dw.buffer, db.buffer);
    result = {Get(y), Get(dx), Get(dw), Get(db)};
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace ballast
