// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "common/run/summary.h"

namespace ballast {

// Returns a <section> about the traffic between workers and servers: bytes, waits, dropped gradients, and bar charts of
// staleness and waits. Empty if the servers reported nothing.
std::string RenderExchangeCard(const Summary& summary);

}  // namespace ballast
