// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_conclusion.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/launch/placement.h"
#include "cli/report/report.h"
#include "common/metrics/test_metric.h"
#include "common/run/summary.h"
#include "common/storage/file.h"
#include "common/text/number_text.h"
#include "common/trace/trace_file.h"

namespace ballast {
namespace {

void PrintSummary(const Summary& summary, std::ostream& out) {
  out << (summary.interrupted ? "stopped after " : "done in ")
      << absl::StrFormat("%.1f s: %s examples at %s samples/s, train loss %.4g in epoch %d\n", summary.seconds,
                         FormatCount(static_cast<double>(summary.examples)), FormatCount(summary.samples_per_second),
                         summary.train_loss, summary.train_loss_epoch);
  if (summary.bytes_sent > 0) {
    out << absl::StrFormat(
        "workers waited %.0f%% of their time for servers; staleness %.2g updates on average, %d at most; %s of "
        "gradients, %s of values\n",
        100 * summary.wait_share, summary.mean_staleness, summary.max_staleness, BytesText(summary.bytes_sent),
        BytesText(summary.bytes_received));
  }
  if (summary.restarts + summary.workers_lost > 0) {
    out << absl::StrFormat("processes restarted %d, workers lost %d, examples repeated %d\n", summary.restarts,
                           summary.workers_lost, summary.examples_repeated);
  }
  if (summary.stopped_early) out << "the training ended early, because the test metric did not improve\n";
  if (summary.best_epoch.has_value()) {
    out << absl::StrFormat("the model and the test results are those of epoch %d, the best\n",
                           static_cast<int>(*summary.best_epoch));
  }
  if (summary.test_accuracy.has_value()) {
    out << absl::StrFormat("test accuracy: %.4f\n", *summary.test_accuracy);
  } else if (summary.test_loss.has_value()) {
    out << absl::StrFormat("test loss: %.4g\n", *summary.test_loss);
  }
  if (summary.test_auc.has_value()) {
    out << "test AUC: " << AucText(*summary.test_auc, summary.bayes_auc);
    if (summary.log_loss.has_value()) out << absl::StrFormat(", log loss %.4f", *summary.log_loss);
    if (summary.calibration.has_value()) out << absl::StrFormat(", calibration %.4g", *summary.calibration);
    out << "\n";
  }
  if (summary.rows.has_value()) {
    out << "rows of all tables: " << FormatCount(static_cast<double>(*summary.rows)) << "\n";
  }
}

absl::Status ErrorOf(const LaunchResult& result) {
  if (result.exit_status == kExitInterrupted) return absl::CancelledError("interrupted");
  const absl::StatusCode code = result.exit_status == kExitBadInput    ? absl::StatusCode::kInvalidArgument
                                : result.exit_status == kExitTemporary ? absl::StatusCode::kDeadlineExceeded
                                                                       : absl::StatusCode::kAborted;
  return absl::Status(result.exit_status == kExitSuccess ? absl::StatusCode::kOk : code, result.error);
}

}  // namespace

void JoinTraces(const LaunchPlan& plan, const std::string& path, std::ostream& out, std::ostream& err) {
  std::vector<std::string> traces;
  std::vector<std::string> joined;
  const auto add = [&](const std::string& part, absl::string_view name, int rank) {
    absl::StatusOr<std::string> text = ReadFile(part);
    if (!text.ok()) {
      err << "warning: " << name << " " << rank << " left no timeline: " << text.status().message() << "\n";
      return;
    }
    traces.push_back(*std::move(text));
    joined.push_back(part);
  };
  for (int rank = 0; rank < plan.workers; ++rank) add(WorkerTracePath(plan.run_dir, rank), "worker", rank);
  // Without a worker's timeline, those of servers are empty.
  if (traces.empty()) return;
  for (int rank = 0; rank < plan.servers; ++rank) {
    add(ServerTracePath(plan.run_dir, rank, false), "server", rank);
    if (plan.durability.mode() != v1::Durability::STANDBY) continue;
    add(ServerTracePath(plan.run_dir, rank, true), "standby", rank);
  }
  const absl::StatusOr<MergedTrace> merged = MergeTraces(traces);
  const absl::Status status = merged.ok() ? WriteFileAtomically(path, {merged->json}) : merged.status();
  if (!status.ok()) {
    err << "warning: cannot merge the timelines: " << status.message() << "; each process's timeline is in "
        << plan.run_dir << "/logs\n";
    return;
  }
  for (const std::string& part : joined) unlink(part.c_str());
  if (merged->left_out > 0) {
    err << "warning: the timeline had no room for " << merged->left_out
        << " spans; choose fewer steps (--trace-steps)\n";
  }
  out << "timeline: " << path << std::endl;
}

CommandResult ConcludeLaunch(const LaunchRequest& request, const RunFolder& folder, const LaunchResult& result,
                             std::ostream& out, std::ostream& err) {
  absl::StatusOr<Summary> summary = ReadSummary(folder.summary());
  if (summary.ok() && (result.restarts > 0 || HasOtherHosts(request.plan))) {
    // The worker that wrote the summary does not know of restarts, and may have run on another host.
    summary->restarts = result.restarts;
    summary->run_dir = folder.path();
    if (absl::Status status = WriteSummary(folder.summary(), *summary); !status.ok()) summary = status;
  }
  const absl::Status report = WriteReport(folder.path());
  const bool whole = result.exit_status == kExitSuccess;
  if (!report.ok() && whole) err << "warning: the report was not written: " << report.message() << "\n";
  if (!summary.ok() && whole) return Fail(err, summary.status(), kExitFailure);
  if (!summary.ok() && result.exit_status == kExitInterrupted) {
    err << "warning: nothing was saved: " << summary.status().message() << "\n";
  }
  const bool show = summary.ok() && (whole || result.exit_status == kExitInterrupted);
  if (show && request.json) {
    out << SummaryToJson(*summary) << std::endl;
  } else {
    if (show) PrintSummary(*summary, out);
    if (report.ok()) (request.json || !show ? err : out) << "report: " << folder.report() << std::endl;
  }
  if (!request.trace.empty()) {
    JoinTraces(request.plan, request.trace, request.json || !show ? err : out, err);
  }
  if (!result.error.empty()) return Fail(err, ErrorOf(result), result.exit_status);
  return {result.exit_status, ErrorOf(result)};
}

}  // namespace ballast
