// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fault/scenario.h"

namespace ballast {

// The oracle's pushes to real servers while replies are lost, connections cut, networks parted, servers killed and
// servers given more than they take.
std::vector<Scenario> PushScenarios(const SoakPlace& place);

}  // namespace ballast
