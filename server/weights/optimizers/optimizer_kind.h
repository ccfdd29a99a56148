// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ballast/v1/tensor.pb.h"
#include "server/weights/optimizers/optimizer.h"
#include "server/weights/optimizers/row_optimizer.h"

namespace ballast {

// The makers of one kind of optimizer, for slices of tensors and for rows of tables. They take a configuration of that
// kind that is valid and has its defaults. `make` is null if only tables may have the kind.
struct OptimizerKind {
  std::unique_ptr<Optimizer> (*make)(const v1::Optimizer& config);
  std::unique_ptr<RowOptimizer> (*make_for_rows)(const v1::Optimizer& config);
};

}  // namespace ballast
