// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker/device/device.h"

namespace ballast {

// Copies values from one device's memory to another's: elements of one type between GPUs without the host, else through
// it; without a stop there where it can address either's memory. Owns the room for that, which grows to the largest.
// Thread safety: one call at a time.
class Transfer {
 public:
  // y = x, of as many elements. Through the host it waits until what was issued on x before is done.
  absl::Status Copy(Device& from, Matrix x, Device& to, Matrix y);

 private:
  std::vector<float> staging_;
};

}  // namespace ballast
