// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/fault/hostile/attack.h"

namespace ballast {

// With a reader's token: pulls of many slices at a step that never comes; they wait until a timeout or a disconnect.
Attack WaitingPulls();

}  // namespace ballast
