// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/device/device_types.h"
#include "worker/device/image_shape.h"
#include "worker/model/layers/parameter.h"

// Functions that the normalization layers share.
namespace ballast {

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
  return absl::InvalidArgumentError(
      absl::StrCat("layer \"", layer, "\": epsilon is ", epsilon, ", want above 0 and at most 1"));
}

}  // namespace ballast
