// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/model/layer_chain.h"

namespace ballast {

// Assigns the values of a chain to memory during forward and backward: some values share memory, and some are not kept
// but recomputed by backward. A value type.
struct ValuePlan {
  // Memory that holds one value at a time.
  struct Place {
    // Elements per example.
    int64_t elements = 0;
    size_t device = 0;
  };
  // Consecutive nodes [first, end) on one device whose values are not kept; the inputs of the run are kept. All runs of
  // a device share places, so backward recomputes a run if another one has used the places since.
  struct Run {
    size_t first = 0;
    size_t end = 0;
  };
  // Plan of one node.
  struct Step {
    // Function of the next layer, if this layer computes it, too.
    std::optional<Activation> activation;
    // True if the previous layer computes this node's function, which leaves forward nothing to do.
    bool done_by_the_one_before = false;
    // Index of the run that contains the node.
    std::optional<size_t> run;
  };

  // The first place holds the features.
  std::vector<Place> places;
  // Place index of each value. A layer that overwrites its input shares the input's place.
  std::vector<size_t> place;
  std::vector<Step> steps;
  std::vector<Run> runs;
};

// Does not keep values of nodes with `recompute` that are used only once, by the next node. With `sparse`, keeps of the
// other such values the number that minimizes memory (Chen et al., "Training deep nets with sublinear memory cost",
// 2016).
ValuePlan PlanValues(const LayerChain& chain, bool sparse);

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
