// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ballast/v1/tensor.pb.h"

namespace ballast {

// A tensor of rank 1 under SGD with learning rate 1, so a gradient is subtracted as it is; all zeros.
inline v1::TensorSpec SgdSpec(uint32_t id, const std::string& name, int64_t elements) {
  v1::TensorSpec spec;
  spec.set_id(id);
  spec.set_name(name);
  spec.add_shape(elements);
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  return spec;
}

}  // namespace ballast
