// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/im2col_convolution.h"

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "worker/device/cpu/cpu_buffer.h"

namespace ballast {
namespace {

// Floats in the matrix of windows: half of a core's L2 cache of 1 MiB.
constexpr int64_t kWindowFloats = 128 * 1024;

// For each row of the window at row i, column j that overlaps the image, calls visit(offset of the window's row in
// its matrix row, offset in the image, number of elements). All other elements are padding.
template <typename Visit>
void ForEachWindowRow(const ConvShape& shape, int64_t i, int64_t j, Visit visit) {
  const Window& w = shape.window;
  const ImageShape& image = shape.input;
  const int64_t top = i * w.vertical_stride - w.vertical_padding;
  const int64_t left = j * w.horizontal_stride - w.horizontal_padding;
  const int64_t from = std::max<int64_t>(left, 0), to = std::min(left + w.width, image.width);
  if (from >= to) return;
  for (int64_t row = std::max<int64_t>(top, 0); row < std::min(top + w.height, image.height); ++row) {
    visit(((row - top) * w.width + from - left) * image.channels, (row * image.width + from) * image.channels,
          (to - from) * image.channels);
  }
}

class Im2colConvolution : public Convolution {
 public:
  const char* name() const override { return "OpenBLAS"; }

  void Forward(const ConvShape& shape, int64_t examples, const float* x, const float* filters, const float* bias,
               float* y) override {
    const int64_t rows = examples * shape.output().pixels();
    if (bias != nullptr) {
      for (int64_t row = 0; row < rows; ++row) std::copy_n(bias, shape.filters, y + row * shape.filters);
    }
    ForEachGroup(shape, examples, [&](int64_t first, int64_t count) {
      const int64_t places = count * shape.output().pixels();
      const float* const windows = Windows(shape, x + first * shape.input.elements(), count);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, places, shape.filters, shape.filter_elements(), 1.0f,
                  windows, shape.filter_elements(), filters, shape.filter_elements(), bias == nullptr ? 0.0f : 1.0f,
                  y + first * shape.output().elements(), shape.filters);
    });
  }

  void BackwardData(const ConvShape& shape, int64_t examples, const float* dy, const float* filters,
                    float* dx) override {
    std::fill_n(dx, examples * shape.input.elements(), 0.0f);
    ForEachGroup(shape, examples, [&](int64_t first, int64_t count) {
      const int64_t places = count * shape.output().pixels();
      windows_.resize(places * shape.filter_elements());
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, places, shape.filter_elements(), shape.filters, 1.0f,
                  dy + first * shape.output().elements(), shape.filters, filters, shape.filter_elements(), 0.0f,
                  windows_.data(), shape.filter_elements());
      AddWindows(shape, count, dx + first * shape.input.elements());
    });
  }

  void BackwardFilters(const ConvShape& shape, int64_t examples, const float* x, const float* dy, float* dfilters,
                       float* dbias) override {
    std::fill_n(dfilters, shape.filters * shape.filter_elements(), 0.0f);
    ForEachGroup(shape, examples, [&](int64_t first, int64_t count) {
      const int64_t places = count * shape.output().pixels();
      const float* const windows = Windows(shape, x + first * shape.input.elements(), count);
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, shape.filters, shape.filter_elements(), places, 1.0f,
                  dy + first * shape.output().elements(), shape.filters, windows, shape.filter_elements(), 1.0f,
                  dfilters, shape.filter_elements());
    });
    if (dbias == nullptr) return;
    // Sums each image first: a single float over all positions would lose digits.
    std::fill_n(dbias, shape.filters, 0.0f);
    std::vector<float> sum(shape.filters);
    for (int64_t example = 0; example < examples; ++example) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int64_t place = 0; place < shape.output().pixels(); ++place, dy += shape.filters) {
        for (int64_t f = 0; f < shape.filters; ++f) sum[f] += dy[f];
      }
      for (int64_t f = 0; f < shape.filters; ++f) dbias[f] += sum[f];
    }
  }

 private:
  template <typename Work>
  static void ForEachGroup(const ConvShape& shape, int64_t examples, Work work) {
    const int64_t image = shape.output().pixels() * shape.filter_elements();
    Require(image <= std::numeric_limits<blasint>::max(), "convolution is too large for BLAS");
    const int64_t group = std::max<int64_t>(kWindowFloats / image, 1);
    for (int64_t first = 0; first < examples; first += group) work(first, std::min(group, examples - first));
  }

  // The windows at all positions, as a matrix [images * positions, filter_elements()].
  const float* Windows(const ConvShape& shape, const float* x, int64_t images) {
    // Windows of one pixel are the images themselves.
    if (shape.window == Window{}) return x;
    const ImageShape out = shape.output();
    windows_.resize(images * out.pixels() * shape.filter_elements());
    float* row = windows_.data();
    for (int64_t image = 0; image < images; ++image, x += shape.input.elements()) {
      for (int64_t i = 0; i < out.height; ++i) {
        for (int64_t j = 0; j < out.width; ++j, row += shape.filter_elements()) {
          std::fill_n(row, shape.filter_elements(), 0.0f);
          ForEachWindowRow(shape, i, j,
                           [&](int64_t at, int64_t from, int64_t n) { std::copy_n(x + from, n, row + at); });
        }
      }
    }
    return windows_.data();
  }

  // Adds the elements of windows_ to the pixels that they were copied from.
  void AddWindows(const ConvShape& shape, int64_t images, float* dx) const {
    const ImageShape out = shape.output();
    const float* row = windows_.data();
    for (int64_t image = 0; image < images; ++image, dx += shape.input.elements()) {
      for (int64_t i = 0; i < out.height; ++i) {
        for (int64_t j = 0; j < out.width; ++j, row += shape.filter_elements()) {
          ForEachWindowRow(shape, i, j, [&](int64_t at, int64_t to, int64_t n) {
            for (int64_t k = 0; k < n; ++k) dx[to + k] += row[at + k];
          });
        }
      }
    }
  }

  std::vector<float> windows_;
};

}  // namespace

std::unique_ptr<Convolution> MakeIm2colConvolution() { return std::make_unique<Im2colConvolution>(); }

}  // namespace ballast
