// SPDX-License-Identifier: Apache-2.0
#include "bench/step_task.h"

namespace ballast {

std::pair<int, int> HiddenUnits(const StepTask& task) {
  return task.model == "large" ? std::pair(4096, 4096) : std::pair(512, 256);
}

uint64_t ModelFloats(const StepTask& task) {
  const auto [first, second] = HiddenUnits(task);
  return (kStepInputs + uint64_t{1}) * first + (first + uint64_t{1}) * second + (second + uint64_t{1}) * kStepClasses;
}

}  // namespace ballast
