// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fault/scenario.h"

namespace ballast {

// Attackers of a job that trains.
std::vector<Scenario> HostileScenarios(const SoakPlace& place);

}  // namespace ballast
