// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "worker/device/device.h"

namespace ballast {

// A device as job files and errors call it: "cpu", or a GPU's number. Does not own it.
struct NamedDevice {
  std::string name;
  Device* device = nullptr;
};

}  // namespace ballast
