// SPDX-License-Identifier: Apache-2.0
#include "common/text/bytes_text.h"

#include <cmath>

#include "absl/strings/str_format.h"

namespace ballast {

std::string BytesText(double bytes) {
  if (!std::isfinite(bytes)) return "not finite";
  if (bytes < 1024) return absl::StrFormat("%.0f B", bytes);
  const char* unit = "";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = larger;
  }
  return absl::StrFormat("%.1f %s", bytes, unit);
}

}  // namespace ballast
