// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ballast {

// Returns "512 B", "1.5 KiB" or "3.0 MiB"; "not finite" for NaN and infinity.
std::string BytesText(double bytes);

}  // namespace ballast
