// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/model/layer_chain.h"

namespace ballast {

// Which buffer holds which gradient while a chain is computed backwards, and how they join where a value is used more
// than once.
struct GradientPlan {
  // What is done for a node.
  struct Step {
    // Where the gradient by its output is; none where nothing before it is trained.
    std::optional<size_t> dy;
    // Where the gradient by its input goes, which may be where dy is (layers that can, sums); none where it is not
    // wanted, or a sum hands dy on as it is.
    std::optional<size_t> dx;
    // What is added to dx after that: the gradient by the same value, of other uses of it. For a sum, dx is dy + this.
    std::optional<size_t> other;
  };

  // Of each node; they are done last to first.
  std::vector<Step> steps;
  // The elements that each buffer needs for an example, and the index of its device.
  std::vector<int64_t> buffers;
  std::vector<size_t> devices;
  // Where the loss puts its gradient.
  size_t loss = 0;
};

GradientPlan PlanGradients(const LayerChain& chain);

}  // namespace ballast
