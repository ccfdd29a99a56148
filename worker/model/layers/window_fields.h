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

// What an image may have in all; products with a batch size stay far from overflow.
inline constexpr int64_t kMaxImageElements = int64_t{1} << 40;

// The fields by which a layer describes its window: one number, or [vertical, horizontal], or none.
struct WindowFields {
  using Numbers = google::protobuf::RepeatedField<int64_t>;

  const Numbers& kernel;
  const Numbers& stride;
  const Numbers& padding;
};

// The window over the layer's input. Where a field has no numbers, kernel and stride are those of `unset`, whose stride
// of 0 stands for the kernel. INVALID_ARGUMENT names the layer, what it got and what it wants.
absl::StatusOr<Window> ReadWindow(const LayerSite& site, const WindowFields& fields, const Window& unset);

// "3x5".
std::string KernelText(const Window& window);

}  // namespace ballast
