// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/model/layer_chain.h"

namespace ballast {

// Assigns gradients to buffers for the backward pass of a chain, and adds the gradients of a value that is used more
// than once. A value type.
struct GradientPlan {
  // Buffer indices for one node.
  struct Step {
    // Gradient with respect to the output; nullopt if nothing up to this node is trained.
    std::optional<size_t> dy;
    // Gradient with respect to the input; the same buffer as dy for sums and for layers that work in place. nullopt if
    // no one needs it, or if a sum passes dy on unchanged.
    std::optional<size_t> dx;
    // Gradient of other uses of the same value, which is then added to dx. For a sum, dx is dy + other.
    std::optional<size_t> other;
  };

  // One step per node; they run from last to first.
  std::vector<Step> steps;
  // Elements per example, and the device index, of each buffer.
  std::vector<int64_t> buffers;
  std::vector<size_t> devices;
  // Buffer that receives the gradient of the loss.
  size_t loss = 0;
};

GradientPlan PlanGradients(const LayerChain& chain);

}  // namespace ballast
