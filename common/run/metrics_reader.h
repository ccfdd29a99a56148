// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/run/metrics.h"

namespace ballast {

// Reads what MetricsWriter wrote. A line that holds no metrics is skipped and counted, never an
// error: a crash may cut the last one, and what came before it is still worth seeing. Unknown kinds
// and keys are ignored. null numbers are NaN.
Metrics ParseMetrics(absl::string_view text);

// NOT_FOUND where there is no such file.
absl::StatusOr<Metrics> ReadMetrics(const std::string& path);

}  // namespace ballast
