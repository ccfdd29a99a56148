// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "common/run/summary.h"

namespace ballast {

// A <section> on what went between workers and servers: bytes, waits, dropped gradients; staleness and waits as bars.
// Empty where the servers said nothing.
std::string RenderExchangeCard(const Summary& summary);

}  // namespace ballast
