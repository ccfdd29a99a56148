// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

// Images are stored channels last: a batch is a matrix [examples, height * width * channels], and the same memory is
// the matrix [examples * height * width, channels] of its pixels.
namespace ballast {

struct ImageShape {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;

  int64_t pixels() const { return height * width; }
  int64_t elements() const { return pixels() * channels; }

  friend bool operator==(const ImageShape&, const ImageShape&) = default;
};

// "28x28x1", for people.
inline std::string ToString(const ImageShape& shape) {
  return absl::StrCat(shape.height, "x", shape.width, "x", shape.channels);
}

// A window that slides over an image, `height` x `width` pixels at a time. Both sides of the image are padded.
struct Window {
  int64_t height = 1;
  int64_t width = 1;
  int64_t vertical_stride = 1;
  int64_t horizontal_stride = 1;
  int64_t vertical_padding = 0;
  int64_t horizontal_padding = 0;

  // Number of window positions. The window never reaches past the padding, so pixels left over at the end are
  // ignored.
  int64_t OutputHeight(int64_t input) const { return (input + 2 * vertical_padding - height) / vertical_stride + 1; }
  int64_t OutputWidth(int64_t input) const { return (input + 2 * horizontal_padding - width) / horizontal_stride + 1; }

  friend bool operator==(const Window&, const Window&) = default;
};

// Returns whether the window is at least 1 x 1, its strides are at least 1, its padding is at least 0 and smaller
// than the window, and it is not larger than the padded image.
inline bool Fits(const Window& window, const ImageShape& input) {
  return window.height >= 1 && window.width >= 1 && window.vertical_stride >= 1 && window.horizontal_stride >= 1 &&
         window.vertical_padding >= 0 && window.vertical_padding < window.height && window.horizontal_padding >= 0 &&
         window.horizontal_padding < window.width && window.height <= input.height + 2 * window.vertical_padding &&
         window.width <= input.width + 2 * window.horizontal_padding;
}

// A convolution. Its filters are [filters, window.height, window.width, input.channels], row-major.
struct ConvShape {
  ImageShape input;
  Window window;
  int64_t filters = 0;

  ImageShape output() const { return {window.OutputHeight(input.height), window.OutputWidth(input.width), filters}; }
  // Number of weights in one filter.
  int64_t filter_elements() const { return window.height * window.width * input.channels; }

  friend bool operator==(const ConvShape&, const ConvShape&) = default;
};

// A pooling, applied to each channel separately.
struct PoolShape {
  ImageShape input;
  Window window;

  ImageShape output() const {
    return {window.OutputHeight(input.height), window.OutputWidth(input.width), input.channels};
  }
  // Bytes that number an element of the window.
  int64_t position_bytes() const { return window.height * window.width <= 256 ? 1 : 4; }
  // Floats whose memory holds such a number for each element of one image's output.
  int64_t position_floats() const { return (output().elements() * position_bytes() + 3) / 4; }

  friend bool operator==(const PoolShape&, const PoolShape&) = default;
};

}  // namespace ballast
