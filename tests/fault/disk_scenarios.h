// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fault/scenario.h"

namespace ballast {

// Disks that lose unsynced data, damage synced data, die in the middle of a checkpoint, or are full.
std::vector<Scenario> DiskScenarios(const SoakPlace& place);

}  // namespace ballast
