// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "common/run/metrics.h"
#include "common/run/summary.h"

namespace ballast {

// What a report shows.
struct ReportContent {
  Metrics metrics;
  // Absent where the run ended without one, killed or crashed.
  std::optional<Summary> summary;
  // The job file's text; empty where it is not known.
  std::string job_text;
  // Names the run where the summary does not.
  std::string run_dir;
};

// One HTML page that needs nothing but itself: style, script and plots are inline, and its policy allows
// the browser no other source. Shows whatever content there is; every text in it is escaped.
std::string RenderReport(const ReportContent& content);

}  // namespace ballast
