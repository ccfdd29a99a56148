// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ballast/v1/job.pb.h"

namespace ballast {

using ReferenceValues = std::vector<double>;

// The mean loss in training of a network in float64, written from the formulas in job.proto and nothing else: what
// tests hold a Model to. `weights` are of all layers, in the model's order; `mask` is what each dropout multiplies by;
// features and labels are of `examples` examples. Slow.
double ReferenceMeanLoss(const v1::Model& config, int64_t examples, const std::vector<ReferenceValues>& weights,
                         const ReferenceValues& mask, const std::vector<float>& features,
                         const std::vector<float>& labels);

}  // namespace ballast
