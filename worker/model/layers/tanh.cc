// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layers/activation_layer.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Layer>> MakeTanh(const LayerSite& site) {
  return std::make_unique<ActivationLayer>(Activation::kTanh, "tanh", site.input);
}

}  // namespace ballast
