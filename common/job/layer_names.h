// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "ballast/v1/job.pb.h"

namespace ballast {

// Calls `visit` with each layer of the model, and after a residual with those inside it.
void ForEachLayer(v1::Model& model, absl::FunctionRef<void(v1::Layer&)> visit);

// Gives each layer without a name its default one, like "dense1": its kind and its position among the layers of that
// kind, counting layers inside residuals too. A layer without a kind counts as a "layer".
void NameLayers(v1::Model& model);

// Returns the names of all layers, also of those inside residuals, in the order of the model.
std::vector<std::string> LayerNames(v1::Model model);

}  // namespace ballast
