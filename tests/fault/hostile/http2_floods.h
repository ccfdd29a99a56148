// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fault/hostile/attack.h"

namespace ballast {

// Every Http2Attack on the servers' data ports, within TLS and with a reader's token if the attack gets that far.
std::vector<Attack> Http2Floods();

}  // namespace ballast
