// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "worker/device/device.h"

namespace ballast {

// A device under the name that job files and errors use: "cpu", or a GPU's index. Does not own it.
struct NamedDevice {
  std::string name;
  Device* device = nullptr;
};

}  // namespace ballast
