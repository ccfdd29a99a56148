// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
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

// Returns a self-contained HTML page with this body: style and script are inline, and its security policy forbids other
// sources.
std::string RenderPage(const std::string& title, const std::string& body);

// Reads a run's files in run_dir and atomically writes the report to `path`; empty: report.html in run_dir. May be
// repeated, also during the run. NOT_FOUND if run_dir contains neither metrics.jsonl nor summary.json, INVALID_ARGUMENT
// if summary.json is damaged.
absl::Status WriteReport(const std::string& run_dir, const std::string& path = "");

}  // namespace ballast
