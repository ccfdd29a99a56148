// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/device/device_types.h"
#include "worker/device/image_shape.h"
#include "worker/model/layers/layer.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {

// Limit on the elements of an image, so that products with a batch size do not overflow.
inline constexpr int64_t kMaxImageElements = int64_t{1} << 40;

// The fields that describe a layer's window. Each has one number, or [vertical, horizontal], or none.
struct WindowFields {
  using Numbers = google::protobuf::RepeatedField<int64_t>;

  const Numbers& kernel;
  const Numbers& stride;
  const Numbers& padding;
};

// Returns the window over the layer's input. A kernel or stride without numbers is taken from `unset`, in which a
// stride of 0 means the size of the kernel. INVALID_ARGUMENT names the layer, what it got and what it wants.
absl::StatusOr<Window> ReadWindow(const LayerSite& site, const WindowFields& fields, const Window& unset);

// Returns text like "3x5".
std::string KernelText(const Window& window);

// Returns the scale and the offset of each channel, which are applied to normalized values.
inline std::vector<Parameter> AffineParameters(const std::string& layer, int64_t channels) {
  Parameter scale{layer + "/scale", {channels}, {}, channels};
  scale.initializer.mutable_constant()->set_value(1.0f);
  Parameter offset{layer + "/offset", {channels}, {}, channels};
  offset.initializer.mutable_zeros();
  return {scale, offset};
}

// Views [examples, elements] as [examples * pixels, channels].
inline Matrix PixelRows(const Matrix& m, const ImageShape& shape) {
  return {m.buffer, m.rows * shape.pixels(), shape.channels};
}

// INVALID_ARGUMENT, naming the layer, if epsilon is out of range.
inline absl::Status CheckEpsilon(const std::string& layer, float epsilon) {
  // The comparison in this form also rejects NaN.
  if (epsilon > 0 && epsilon <= 1) return absl::OkStatus();
  return LayerError(layer, "epsilon is ", epsilon, ", want above 0 and at most 1");
}

// Returns the weight, of which `shape` begins with the number of outputs, and the bias, if there is one. Without an
// initializer the weight has He's.
std::vector<Parameter> WeightAndBias(const std::string& layer, std::vector<int64_t> shape,
                                     const v1::Initializer& initializer, bool bias);

}  // namespace ballast
