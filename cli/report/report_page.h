// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "common/run/metrics.h"
#include "common/run/summary.h"

namespace ballast {

struct ReportContent {
  Metrics metrics;
  // Absent if the run is in progress, was killed or crashed.
  std::optional<Summary> summary;
  // The job file's text; empty if unknown.
  std::string job_text;
  // Names the run if there is no summary.
  std::string run_dir;
};

// Returns a self-contained HTML page: style, script and plots are inline, and its security policy forbids other
// sources. Any part of the content may be missing; all text is escaped.
std::string RenderReport(const ReportContent& content);

}  // namespace ballast
