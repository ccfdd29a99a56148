// SPDX-License-Identifier: Apache-2.0
#include "worker/model/buffer_plans.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ballast {
namespace {

// Values that share memory, because each one overwrites the one before.
struct Group {
  int64_t elements = 0;
  size_t device = 0;
  size_t first_value = 0;
  size_t end_value = 0;
  // True if the group can be recomputed from kept values, and if the job asks for that.
  bool droppable = true;
  bool marked = true;
};

class ValuePlanner {
 public:
  explicit ValuePlanner(const LayerChain& chain) : chain_(chain), uses_(chain.nodes.size() + 1), users_(uses_.size()) {
    for (size_t i = 0; i < chain.nodes.size(); ++i) {
      Use(chain.nodes[i].input, i);
      if (chain.nodes[i].sums()) Use(chain.nodes[i].shortcut, i);
    }
    // The loss uses the last value.
    Use(chain.nodes.size(), chain.nodes.size());
    GroupValues();
  }

  // Keeps every `period`th droppable group that is not marked.
  ValuePlan Plan(size_t period) const {
    ValuePlan plan;
    plan.steps = steps_;
    plan.place.resize(uses_.size());
    // Places that runs share, by device and by the position of the group in its run.
    std::map<std::pair<size_t, size_t>, size_t> shared;
    size_t of_run = 0, unmarked = 0;
    for (const Group& group : groups_) {
      const bool dropped = group.droppable && (group.marked || ++unmarked % period != 0);
      size_t place = plan.places.size();
      if (dropped) {
        const size_t first = group.first_value - 1;
        if (plan.runs.empty() || plan.runs.back().end != first) {
          plan.runs.push_back({first, first});
          of_run = 0;
        }
        plan.runs.back().end = group.end_value - 1;
        place = shared.try_emplace({group.device, of_run++}, place).first->second;
        for (size_t v = group.first_value; v < group.end_value; ++v) plan.steps[v - 1].run = plan.runs.size() - 1;
      }
      if (place == plan.places.size()) plan.places.push_back({0, group.device});
      plan.places[place].elements = std::max(plan.places[place].elements, group.elements);
      for (size_t v = group.first_value; v < group.end_value; ++v) plan.place[v] = place;
    }
    return plan;
  }

  size_t droppable() const {
    return std::count_if(groups_.begin(), groups_.end(), [](const Group& group) { return group.droppable; });
  }

 private:
  void Use(size_t value, size_t by) {
    ++uses_[value];
    users_[value] = by;
  }

  // Returns whether node i overwrites its input with its value. Also plans the activation that the node before can
  // fuse.
  bool WritesOverInput(size_t i) {
    const ChainNode& node = chain_.nodes[i];
    if (node.carries) return false;
    const LayerTraits traits = node.sums() ? LayerTraits{.in_place = true} : node.layer->traits();
    // The features must stay unchanged for the whole batch.
    if (!traits.in_place || uses_[node.input] != 1 || node.input == 0) return false;
    const ChainNode& before = chain_.nodes[node.input - 1];
    // A layer that overwrote its input needs its output in backward, so a sum must not overwrite that. The in-place
    // layers may: they keep the signs, which is all that a ReLU needs, and a dropout needs nothing.
    if (node.sums() && before.layer != nullptr && before.layer->traits().in_place) return false;
    if (traits.activation.has_value() && before.layer != nullptr && before.layer->traits().fuses_activation) {
      steps_[node.input - 1].activation = traits.activation;
      steps_[i].done_by_the_one_before = true;
    }
    return true;
  }

  void GroupValues() {
    steps_.resize(chain_.nodes.size());
    groups_.push_back({chain_.features, chain_.features_device, 0, 1, false, false});
    std::vector<size_t> group_of = {0};
    for (size_t i = 0; i < chain_.nodes.size(); ++i) {
      const ChainNode& node = chain_.nodes[i];
      if (WritesOverInput(i)) {
        group_of.push_back(group_of[node.input]);
      } else {
        group_of.push_back(groups_.size());
        groups_.push_back({node.outputs, node.device, i + 1, i + 2});
      }
      Group& group = groups_[group_of.back()];
      // A value that later nodes use must stay, as must one that a sum overwrites after other nodes.
      group.droppable &= !node.carries && !node.table.has_value() && uses_[i + 1] == 1 && users_[i + 1] == i + 1;
      group.marked &= node.recompute;
      group.end_value = i + 2;
    }
  }

  const LayerChain& chain_;
  // Number of uses of each value, and the last node that uses it.
  std::vector<int> uses_;
  std::vector<size_t> users_;
  std::vector<ValuePlan::Step> steps_;
  std::vector<Group> groups_;
};

int64_t Elements(const ValuePlan& plan) {
  int64_t sum = 0;
  for (const ValuePlan::Place& place : plan.places) sum += place.elements;
  return sum;
}

}  // namespace

ValuePlan PlanValues(const LayerChain& chain, bool sparse) {
  const ValuePlanner planner(chain);
  ValuePlan best = planner.Plan(1);
  if (!sparse) return best;
  for (size_t period = 2; period <= planner.droppable() + 1; ++period) {
    ValuePlan plan = planner.Plan(period);
    if (Elements(plan) < Elements(best)) best = std::move(plan);
  }
  return best;
}

namespace {

// Returns, for each value, whether the gradient of a parameter or of rows depends on the value's gradient.
std::vector<bool> WantedGradients(const LayerChain& chain) {
  std::vector<bool> wanted = {false};
  for (const ChainNode& node : chain.nodes) {
    const bool before = wanted[node.input] || (node.sums() && wanted[node.shortcut]);
    wanted.push_back(before || node.trains() || node.table.has_value());
  }
  return wanted;
}

class GradientPlanner {
 public:
  explicit GradientPlanner(const LayerChain& chain)
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

GradientPlan PlanGradients(const LayerChain& chain) { return GradientPlanner(chain).Plan(); }

}  // namespace ballast
