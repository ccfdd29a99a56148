// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fault/scenario.h"

namespace ballast {

// Disks that lose what was not synced, that damage what was, that die in the middle of a checkpoint and that are
// full.
std::vector<Scenario> DiskScenarios(const SoakPlace& place);

}  // namespace ballast
