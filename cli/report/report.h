// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace ballast {

// Reads a run's files in run_dir and atomically writes report.html there. May be repeated, also during the run.
// NOT_FOUND if run_dir contains neither metrics.jsonl nor summary.json, INVALID_ARGUMENT if summary.json is damaged.
absl::Status WriteReport(const std::string& run_dir);

}  // namespace ballast
