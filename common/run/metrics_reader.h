// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/run/metrics.h"

namespace ballast {

// Parses the output of MetricsWriter. A line that holds no metrics is skipped and counted, never an error: a crash
// may truncate the last one, and the lines before it are still useful. Unknown kinds and keys are ignored. null
// numbers are NaN.
Metrics ParseMetrics(absl::string_view text);

// NOT_FOUND if the file does not exist.
absl::StatusOr<Metrics> ReadMetrics(const std::string& path);

}  // namespace ballast
