// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker/device/device.h"

namespace ballast {

// Copies values from one device's memory to another's. Elements of one type go directly between GPUs; others go
// through the host, without staging if the host can address either side's memory. Owns the staging memory, which
// grows to the largest copy.
// Thread safety: one call at a time.
class Transfer {
 public:
  // y = x, with as many elements. Through the host, it waits for the operations issued on x before.
  absl::Status Copy(Device& from, Matrix x, Device& to, Matrix y);

 private:
  std::vector<float> staging_;
};

}  // namespace ballast
