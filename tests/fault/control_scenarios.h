// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fault/scenario.h"

namespace ballast {

// Control calls on servers that are busy or whose disk is slow.
std::vector<Scenario> ControlScenarios(const SoakPlace& place);

}  // namespace ballast
