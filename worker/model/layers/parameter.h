// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ballast/v1/tensor.pb.h"
#include "worker/device/device.h"

namespace ballast {

// Description of a parameter, as the servers need it to hold its weights.
struct Parameter {
  // Name like "dense1/weight".
  std::string name;
  std::vector<int64_t> shape;
  v1::Initializer initializer;
  int64_t elements = 0;
};

// A parameter and its gradient of the mean loss, on the device.
struct ParameterMemory {
  std::unique_ptr<Buffer> value;
  std::unique_ptr<Buffer> gradient;
};

}  // namespace ballast
