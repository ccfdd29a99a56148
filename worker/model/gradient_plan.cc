// SPDX-License-Identifier: Apache-2.0
#include "worker/model/gradient_plan.h"

#include <algorithm>

namespace ballast {
namespace {

// Returns, for each value, whether a parameter's gradient depends on the value's gradient.
std::vector<bool> WantedGradients(const LayerChain& chain) {
  std::vector<bool> wanted = {false};
  for (const ChainNode& node : chain.nodes) {
    const bool before = wanted[node.input] || (node.sums() && wanted[node.shortcut]);
    wanted.push_back(before || (node.layer != nullptr && !node.layer->Parameters().empty()));
  }
  return wanted;
}

class Planner {
 public:
  explicit Planner(const LayerChain& chain)
      : chain_(chain), wanted_(WantedGradients(chain)), gradient_(chain.nodes.size() + 1) {}

  GradientPlan Plan() {
    const size_t last = chain_.nodes.size();
    plan_.loss = TakeFor(last);
    gradient_[last] = plan_.loss;
    plan_.steps.resize(last);
    for (size_t i = last; i-- > 0;) {
      if (!wanted_[i + 1]) continue;
      GradientPlan::Step& step = plan_.steps[i];
      step.dy = gradient_[i + 1];
      if (chain_.nodes[i].sums()) {
        PlanSum(chain_.nodes[i], step);
      } else if (wanted_[chain_.nodes[i].input]) {
        PlanLayer(chain_.nodes[i], step);
      }
      Release(*step.dy);
    }
    return std::move(plan_);
  }

 private:
  // Takes a free buffer for the gradient of a value.
  size_t TakeFor(size_t value) { return Take(chain_.ElementsOf(value), chain_.DeviceOf(value)); }

  void PlanLayer(const ChainNode& node, GradientPlan::Step& step) {
    std::optional<size_t>& gradient = gradient_[node.input];
    if (!node.carries && node.layer->traits().in_place && holders_[*step.dy] == 1) {
      step.dx = Share(*step.dy);
    } else {
      step.dx = TakeFor(node.input);
    }
    step.other = gradient;
    if (gradient.has_value()) Release(*gradient);
    gradient = step.dx;
  }

  // Both inputs of a sum have the gradient of its output.
  void PlanSum(const ChainNode& node, GradientPlan::Step& step) {
    // No other node uses `input`, the end of the residual's layers.
    if (wanted_[node.input]) gradient_[node.input] = Share(*step.dy);
    if (!wanted_[node.shortcut]) return;
    std::optional<size_t>& gradient = gradient_[node.shortcut];
    if (!gradient.has_value()) {
      gradient = Share(*step.dy);
      return;
    }
    step.other = gradient;
    step.dx = holders_[*gradient] == 1 ? Share(*gradient) : TakeFor(node.shortcut);
    Release(*gradient);
    gradient = step.dx;
  }

  // Takes a buffer that holds no gradient, or adds one.
  size_t Take(int64_t elements, size_t device) {
    size_t buffer = 0;
    while (buffer < holders_.size() && (holders_[buffer] > 0 || plan_.devices[buffer] != device)) ++buffer;
    if (buffer == holders_.size()) {
      holders_.push_back(0);
      plan_.buffers.push_back(0);
      plan_.devices.push_back(device);
    }
    plan_.buffers[buffer] = std::max(plan_.buffers[buffer], elements);
    return Share(buffer);
  }

  size_t Share(size_t buffer) {
    ++holders_[buffer];
    return buffer;
  }

  void Release(size_t buffer) { --holders_[buffer]; }

  const LayerChain& chain_;
  const std::vector<bool> wanted_;
  GradientPlan plan_;
  // Buffer of each value whose gradient, or a part of it, is known.
  std::vector<std::optional<size_t>> gradient_;
  // Number of values whose gradient each buffer holds.
  std::vector<int> holders_;
};

}  // namespace

GradientPlan PlanGradients(const LayerChain& chain) { return Planner(chain).Plan(); }

}  // namespace ballast
