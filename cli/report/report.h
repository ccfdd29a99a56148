// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace ballast {

// Reads what a run left in run_dir and writes report.html beside it, atomically; may be repeated, also
// while the run goes on. NOT_FOUND where run_dir holds neither metrics.jsonl nor summary.json,
// INVALID_ARGUMENT where summary.json is damaged.
absl::Status WriteReport(const std::string& run_dir);

}  // namespace ballast
