// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layers/activation_layer.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Layer>> MakeRelu(const LayerSite& site) {
  return std::make_unique<ActivationLayer>(Activation::kRelu, "relu", site.input);
}

}  // namespace ballast
