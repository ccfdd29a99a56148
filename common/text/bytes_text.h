// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ballast {

// "512 B", "1.5 KiB", "3.0 MiB"; "not finite".
std::string BytesText(double bytes);

}  // namespace ballast
