// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report.h"

#include "absl/strings/str_cat.h"
#include "cli/report/report_page.h"
#include "common/run/metrics_reader.h"
#include "common/run/run_folder.h"
#include "common/storage/file.h"

namespace ballast {

absl::Status WriteReport(const std::string& run_dir) {
  const RunFolder folder(run_dir);
  ReportContent content;
  content.run_dir = folder.path();
  absl::StatusOr<Metrics> metrics = ReadMetrics(folder.metrics());
  absl::StatusOr<Summary> summary = ReadSummary(folder.summary());
  if (absl::IsNotFound(metrics.status()) && absl::IsNotFound(summary.status())) {
    return absl::NotFoundError(
        absl::StrCat("run directory ", folder.path(), ": has neither metrics.jsonl nor summary.json"));
  }
  if (metrics.ok()) {
    content.metrics = *std::move(metrics);
  } else if (!absl::IsNotFound(metrics.status())) {
    return metrics.status();
  }
  if (summary.ok()) {
    content.summary = *std::move(summary);
  } else if (!absl::IsNotFound(summary.status())) {
    return summary.status();
  }
  absl::StatusOr<std::string> job_text = ReadFile(folder.job());
  if (job_text.ok()) {
    content.job_text = *std::move(job_text);
  } else if (!absl::IsNotFound(job_text.status())) {
    return job_text.status();
  }
  return WriteFileAtomically(folder.report(), {RenderReport(content)});
}

}  // namespace ballast
