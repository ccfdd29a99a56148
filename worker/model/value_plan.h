// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/model/layer_chain.h"

namespace ballast {

// Where the values of a chain are while a batch goes forward and backward: which share memory, and which are not kept
// but computed again when backward comes to them.
struct ValuePlan {
  // Memory that holds one value at a time.
  struct Place {
    // Of an example.
    int64_t elements = 0;
    // Index of the device.
    size_t device = 0;
  };
  // The nodes [first, end), one after the other on one device, whose values are not kept. What they are computed from
  // is. All runs of a device use the same places, so backward computes one again where another was there since.
  struct Run {
    size_t first = 0;
    size_t end = 0;
  };
  // Of a node.
  struct Step {
    // The next layer's function, which this one computes with its own.
    std::optional<Activation> activation;
    // That next layer: it has nothing left to do forward.
    bool done_by_the_one_before = false;
    // Index of the run that it is in.
    std::optional<size_t> run;
  };

  // The first one is the features'.
  std::vector<Place> places;
  // Of each value: index of its place. Layers that can write over their input share one with it.
  std::vector<size_t> place;
  std::vector<Step> steps;
  std::vector<Run> runs;
};

// Values of nodes with `recompute` are not kept where that is possible: what is used once, by the next node. Where
// `sparse`, of the others only so many are kept that memory is least (Chen et al., "Training deep nets with sublinear
// memory cost", 2016).
ValuePlan PlanValues(const LayerChain& chain, bool sparse);

}  // namespace ballast
