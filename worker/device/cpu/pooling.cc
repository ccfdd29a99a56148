// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/pooling.h"

#include <algorithm>
#include <vector>

namespace ballast {
namespace {

// The pixels of an image that one window position covers.
struct Cover {
  int64_t top, bottom, left, right;

  int64_t pixels() const { return (bottom - top) * (right - left); }
};

// Calls visit(cover, index of the position in row-major order) for each window position.
template <typename Visit>
void ForEachPlace(const PoolShape& shape, Visit visit) {
  const Window& w = shape.window;
  const ImageShape out = shape.output();
  int64_t place = 0;
  for (int64_t i = 0; i < out.height; ++i) {
    const int64_t top = i * w.vertical_stride - w.vertical_padding;
    for (int64_t j = 0; j < out.width; ++j, ++place) {
      const int64_t left = j * w.horizontal_stride - w.horizontal_padding;
      visit(Cover{std::max<int64_t>(top, 0), std::min(top + w.height, shape.input.height), std::max<int64_t>(left, 0),
                  std::min(left + w.width, shape.input.width)},
            place);
    }
  }
}

// Calls visit(index of the first channel in the image) for each covered pixel, in row-major order.
template <typename Visit>
void ForEachPixel(const Cover& cover, const ImageShape& image, Visit visit) {
  for (int64_t row = cover.top; row < cover.bottom; ++row) {
    for (int64_t column = cover.left; column < cover.right; ++column) {
      visit((row * image.width + column) * image.channels);
    }
  }
}

// y = max(x, y), where NaN counts as the largest.
void TakeLarger(int64_t n, const float* x, float* y) {
  for (int64_t c = 0; c < n; ++c) y[c] = ((x[c] > y[c]) | (x[c] != x[c])) ? x[c] : y[c];
}

// If x is larger than `best`, stores it and its position. The first NaN wins.
void NoteLarger(int64_t n, const float* x, int32_t place, float* best, int32_t* where) {
  for (int64_t c = 0; c < n; ++c) {
    const float old = best[c], candidate = x[c];
    const int32_t old_place = where[c];
    const bool larger = (candidate > old) | ((candidate != candidate) & (old == old));
    best[c] = larger ? candidate : old;
    where[c] = larger ? place : old_place;
  }
}

// dx = dx + dy if the stored position is `place`.
void AddWhereNoted(int64_t n, const int32_t* where, int32_t place, const float* dy, float* dx) {
  for (int64_t c = 0; c < n; ++c) {
    // Reads dy in both cases, because otherwise the compiler generates a branch.
    const float gradient = dy[c];
    dx[c] += where[c] == place ? gradient : 0.0f;
  }
}

}  // namespace

void MaxPool(const PoolShape& shape, int64_t examples, const float* x, float* y) {
  const int64_t channels = shape.input.channels;
  for (int64_t example = 0; example < examples; ++example) {
    ForEachPlace(shape, [&](const Cover& cover, int64_t place) {
      float* const largest = y + place * channels;
      bool first = true;
      ForEachPixel(cover, shape.input, [&](int64_t pixel) {
        if (first) {
          std::copy_n(x + pixel, channels, largest);
        } else {
          TakeLarger(channels, x + pixel, largest);
        }
        first = false;
      });
    });
    x += shape.input.elements();
    y += shape.output().elements();
  }
}

void MaxPoolBackward(const PoolShape& shape, int64_t examples, const float* x, const float* dy, float* dx) {
  const int64_t channels = shape.input.channels;
  std::vector<float> best(channels);
  std::vector<int32_t> where(channels);
  std::fill_n(dx, examples * shape.input.elements(), 0.0f);
  for (int64_t example = 0; example < examples; ++example) {
    ForEachPlace(shape, [&](const Cover& cover, int64_t place) {
      int32_t nth = 0;
      ForEachPixel(cover, shape.input, [&](int64_t pixel) {
        if (nth == 0) {
          std::copy_n(x + pixel, channels, best.data());
          std::fill(where.begin(), where.end(), 0);
        } else {
          NoteLarger(channels, x + pixel, nth, best.data(), where.data());
        }
        ++nth;
      });
      nth = 0;
      const float* const gradient = dy + place * channels;
      ForEachPixel(cover, shape.input, [&](int64_t pixel) {
        AddWhereNoted(channels, where.data(), nth, gradient, dx + pixel);
        ++nth;
      });
    });
    x += shape.input.elements();
    dx += shape.input.elements();
    dy += shape.output().elements();
  }
}

void AveragePool(const PoolShape& shape, int64_t examples, const float* x, float* y) {
  const int64_t channels = shape.input.channels;
  for (int64_t example = 0; example < examples; ++example) {
    ForEachPlace(shape, [&](const Cover& cover, int64_t place) {
      float* const mean = y + place * channels;
      std::fill_n(mean, channels, 0.0f);
      ForEachPixel(cover, shape.input, [&](int64_t pixel) {
        for (int64_t c = 0; c < channels; ++c) mean[c] += x[pixel + c];
      });
      const float share = 1.0f / static_cast<float>(cover.pixels());
      for (int64_t c = 0; c < channels; ++c) mean[c] *= share;
    });
    x += shape.input.elements();
    y += shape.output().elements();
  }
}

void AveragePoolBackward(const PoolShape& shape, int64_t examples, const float* dy, float* dx) {
  const int64_t channels = shape.input.channels;
  std::fill_n(dx, examples * shape.input.elements(), 0.0f);
  for (int64_t example = 0; example < examples; ++example) {
    ForEachPlace(shape, [&](const Cover& cover, int64_t place) {
      const float share = 1.0f / static_cast<float>(cover.pixels());
      const float* const gradient = dy + place * channels;
      ForEachPixel(cover, shape.input, [&](int64_t pixel) {
        for (int64_t c = 0; c < channels; ++c) dx[pixel + c] += gradient[c] * share;
      });
    });
    dx += shape.input.elements();
    dy += shape.output().elements();
  }
}

}  // namespace ballast
