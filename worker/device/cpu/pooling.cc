// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/pooling.h"

#include <algorithm>
#include <cstring>
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

// Positions are kept in `bytes` bytes each, from element `at` of the output on.
void KeepPositions(const std::vector<int32_t>& where, int64_t bytes, int64_t at, void* positions) {
  char* const to = static_cast<char*>(positions) + at * bytes;
  if (bytes == 1) {
    std::copy(where.begin(), where.end(), reinterpret_cast<uint8_t*>(to));
  } else {
    std::memcpy(to, where.data(), where.size() * sizeof(int32_t));
  }
}

void ReadPositions(const void* positions, int64_t bytes, int64_t at, std::vector<int32_t>* where) {
  const char* const from = static_cast<const char*>(positions) + at * bytes;
  if (bytes == 1) {
    std::copy_n(reinterpret_cast<const uint8_t*>(from), where->size(), where->begin());
  } else {
    std::memcpy(where->data(), from, where->size() * sizeof(int32_t));
  }
}

}  // namespace

void MaxPool(const PoolShape& shape, int64_t examples, const float* x, void* positions, float* y) {
  const int64_t channels = shape.input.channels;
  std::vector<int32_t> where(channels);
  for (int64_t example = 0; example < examples; ++example) {
    ForEachPlace(shape, [&](const Cover& cover, int64_t place) {
      float* const largest = y + place * channels;
      int32_t nth = 0;
      ForEachPixel(cover, shape.input, [&](int64_t pixel) {
        if (nth == 0) {
          std::copy_n(x + pixel, channels, largest);
          std::fill(where.begin(), where.end(), 0);
        } else if (positions == nullptr) {
          TakeLarger(channels, x + pixel, largest);
        } else {
          NoteLarger(channels, x + pixel, nth, largest, where.data());
        }
        ++nth;
      });
      if (positions == nullptr) return;
      KeepPositions(where, shape.position_bytes(), example * shape.output().elements() + place * channels, positions);
    });
    x += shape.input.elements();
    y += shape.output().elements();
  }
}

void MaxPoolBackward(const PoolShape& shape, int64_t examples, const void* positions, const float* dy, float* dx) {
  const int64_t channels = shape.input.channels;
  std::vector<int32_t> where(channels);
  std::fill_n(dx, examples * shape.input.elements(), 0.0f);
  for (int64_t example = 0; example < examples; ++example) {
    ForEachPlace(shape, [&](const Cover& cover, int64_t place) {
      ReadPositions(positions, shape.position_bytes(), example * shape.output().elements() + place * channels, &where);
      int32_t nth = 0;
      const float* const gradient = dy + place * channels;
      ForEachPixel(cover, shape.input, [&](int64_t pixel) {
        AddWhereNoted(channels, where.data(), nth, gradient, dx + pixel);
        ++nth;
      });
    });
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
