// SPDX-License-Identifier: Apache-2.0
#include "server/tables/steps/step_messages.h"

namespace ballast {

bool StepMessages::Add(const StepMessage& message) {
  const auto [worker, incarnation, step, messages_of_step] = message;
  Steps& steps = workers_[worker];
  const uint64_t newest = steps.empty() ? incarnation : steps.begin()->second.incarnation;
  if (incarnation < newest) return false;
  if (incarnation > newest) steps.clear();
  // The usual case needs no entry.
  if (messages_of_step == 1 && !steps.contains(step)) return true;
  Open& open = steps.try_emplace(step, Open{worker, incarnation, step}).first->second;
  ++open.received;
  if (messages_of_step > 0) open.expected = messages_of_step;
  if (open.expected > 0 && open.received >= open.expected) {
    steps.erase(step);
    return true;
  }
  if (steps.size() > kMaxOpenSteps) steps.erase(steps.begin());
  return false;
}

bool StepMessages::IsCounted(const StepMessage& message) const {
  const auto steps = workers_.find(message.worker);
  if (steps == workers_.end()) return false;
  const auto open = steps->second.find(message.step);
  return open != steps->second.end() && open->second.expected > 0;
}

void StepMessages::Forget(uint32_t worker) { workers_.erase(worker); }

void StepMessages::Forget(uint32_t worker, uint64_t step) {
  const auto steps = workers_.find(worker);
  if (steps != workers_.end()) steps->second.erase(steps->second.begin(), steps->second.lower_bound(step));
}

std::vector<StepMessages::Open> StepMessages::Save() const {
  std::vector<Open> saved;
  for (const auto& [worker, steps] : workers_) {
    for (const auto& [step, open] : steps) saved.push_back(open);
  }
  return saved;
}

void StepMessages::Restore(absl::Span<const Open> saved) {
  workers_.clear();
  for (const Open& open : saved) workers_[open.worker][open.step] = open;
}

}  // namespace ballast
