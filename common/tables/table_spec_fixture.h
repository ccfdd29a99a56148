// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ballast/v1/table.pb.h"

namespace ballast {

// A table under SGD with learning rate 1, so a gradient is subtracted as it is; rows begin with zeros.
inline v1::TableSpec SgdTable(uint32_t id, const std::string& name, uint32_t dim) {
  v1::TableSpec spec;
  spec.set_id(id);
  spec.set_name(name);
  spec.set_dim(dim);
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  return spec;
}

}  // namespace ballast
