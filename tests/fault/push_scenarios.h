// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fault/scenario.h"

namespace ballast {

// The oracle's pushes to real servers while replies are lost, connections cut, networks partitioned, servers killed
// and servers overloaded.
std::vector<Scenario> PushScenarios(const SoakPlace& place);

}  // namespace ballast
