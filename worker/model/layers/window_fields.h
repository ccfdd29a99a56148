// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/image_shape.h"
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

}  // namespace ballast
