// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fault/scenario.h"

namespace ballast {

// Whole jobs of real servers and workers that are killed. They run only where they are named: each is long, and wants
// the machine for itself.
std::vector<Scenario> JobScenarios(const SoakPlace& place);

}  // namespace ballast
