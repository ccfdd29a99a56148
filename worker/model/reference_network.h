// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ballast/v1/job.pb.h"

namespace ballast {

using ReferenceValues = std::vector<double>;

// Returns the mean training loss of a network in float64, as the reference that tests compare a Model with. It is
// written only from the formulas in job.proto. `weights` are those of all layers in the model's order; `mask` has the
// factors of each dropout; features and labels are those of `examples` examples. Slow.
double ReferenceMeanLoss(const v1::Model& config, int64_t examples, const std::vector<ReferenceValues>& weights,
                         const ReferenceValues& mask, const std::vector<float>& features,
                         const std::vector<float>& labels);

}  // namespace ballast
