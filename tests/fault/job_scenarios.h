// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fault/scenario.h"

namespace ballast {

// Jobs of real servers and workers that are killed. They run only by name: each is long and needs the whole machine.
std::vector<Scenario> JobScenarios(const SoakPlace& place);

}  // namespace ballast
