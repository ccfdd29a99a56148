// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ballast/v1/tensor.pb.h"
#include "worker/device/device.h"

namespace ballast {

// What the servers must know of a weight to hold it.
struct Parameter {
  // "dense1/weight".
  std::string name;
  std::vector<int64_t> shape;
  v1::Initializer initializer;
  int64_t elements = 0;
};

// A weight and the gradient of the mean loss by it, on the device.
struct ParameterMemory {
  std::unique_ptr<Buffer> value;
  std::unique_ptr<Buffer> gradient;
};

}  // namespace ballast
