// SPDX-License-Identifier: Apache-2.0
#include "cli/report/run_catalog.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/report_sections.h"
#include "common/job/job_file.h"
#include "common/job/job_overrides.h"
#include "common/run/launch_record.h"
#include "common/run/metrics.h"
#include "common/run/run_folder.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> FilesOf(const RunFolder& folder) {
  return {folder.launch(), folder.job(), folder.metrics(), folder.summary()};
}

// Returns when the oldest of the run's files was written last: the job file, which is written once at the start.
absl::Time OldestFile(const RunFolder& folder) {
  absl::Time oldest = absl::InfiniteFuture();
  for (const std::string& file : FilesOf(folder)) {
    std::error_code error;
    const auto written = std::filesystem::last_write_time(file, error);
    if (error) continue;
    oldest = std::min(oldest, absl::FromChrono(std::chrono::file_clock::to_sys(written)));
  }
  return oldest;
}

void SetState(const std::optional<LaunchState>& launch, bool has_summary, RunInfo& run) {
  if (has_summary) run.state = run.summary.interrupted ? RunState::kInterrupted : RunState::kFinished;
  if (!launch.has_value()) return;
  run.started = launch->started;
  if (launch->running) {
    run.state = RunState::kRunning;
  } else if (launch->exit_status == 130) {
    run.state = RunState::kInterrupted;
  } else if (launch->exit_status.value_or(0) != 0) {
    run.state = RunState::kFailed;
    run.error = launch->error;
  } else if (!has_summary) {
    run.state = RunState::kFailed;
    run.error = "the launch was killed";
  }
}

// The rank of a kind of result, and numbers of which less is better: the result, and one for equal results.
std::tuple<int, double, double> Rank(const RunInfo& run) {
  const int failed = run.state == RunState::kFailed ? 5 : 0;
  const Summary& summary = run.summary;
  const double test_loss = summary.test_loss.value_or(NAN);
  const bool tested = std::isfinite(test_loss);
  int kind = failed;
  for (const std::optional<double>& score : {summary.test_auc, summary.test_accuracy}) {
    if (std::isfinite(score.value_or(NAN))) return {kind, -*score, tested ? test_loss : 0};
    ++kind;
  }
  if (tested) return {kind, test_loss, 0};
  if (summary.steps > 0 && std::isfinite(summary.train_loss)) return {kind + 1, summary.train_loss, 0};
  return {kind + 2, 0, 0};
}

Json OrNull(const std::optional<double>& number) { return number.has_value() ? Json(*number) : Json(); }

// Adds the runs in `directory`. `sweeps`: also those in its sweeps.
absl::Status AddRuns(const std::string& directory, bool sweeps, RunList& list) {
  std::error_code error;
  std::vector<std::string> inner;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const bool hidden = absl::StartsWith(entry->path().filename().string(), ".");
    if (!hidden && entry->is_directory(ignored)) inner.push_back(entry->path().string());
  }
  if (error) return absl::ErrnoToStatus(error.value(), directory);
  std::sort(inner.begin(), inner.end());
  for (const std::string& path : inner) {
    std::error_code ignored;
    if (sweeps && std::filesystem::exists(absl::StrCat(path, "/", kSweepFile), ignored)) {
      if (absl::Status status = AddRuns(path, false, list); !status.ok()) {
        list.skipped.push_back({path, std::string(status.message())});
      }
      continue;
    }
    absl::StatusOr<RunInfo> run = ReadRun(path);
    if (run.ok()) {
      list.runs.push_back(*std::move(run));
    } else if (sweeps || !absl::IsNotFound(run.status())) {
      // A sweep's other directories are its own.
      list.skipped.push_back({path, std::string(run.status().message())});
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string StateName(RunState state) {
  switch (state) {
    case RunState::kRunning:
      return "running";
    case RunState::kFinished:
      return "finished";
    case RunState::kInterrupted:
      return "interrupted";
    case RunState::kFailed:
      return "failed";
    case RunState::kUnfinished:
      return "unfinished";
  }
  return "unknown";
}

bool HoldsRun(const std::string& directory) {
  const std::vector<std::string> files = FilesOf(RunFolder(directory));
  return std::any_of(files.begin(), files.end(), [](const std::string& file) {
    std::error_code ignored;
    return std::filesystem::exists(file, ignored);
  });
}

absl::StatusOr<RunInfo> ReadRun(const std::string& directory) {
  const RunFolder folder(directory);
  if (!HoldsRun(directory)) {
    if (access(directory.c_str(), X_OK) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("run directory ", folder.path()));
    }
    return absl::NotFoundError(absl::StrCat(
        "run directory ", folder.path(), ": has none of launch.json, job.textproto, metrics.jsonl and summary.json"));
  }
  RunInfo run;
  run.directory = folder.path();
  run.started = OldestFile(folder);
  const absl::StatusOr<LaunchState> launch = LaunchRecord::Read(folder.path());
  if (!launch.ok() && !absl::IsNotFound(launch.status())) return launch.status();
  absl::StatusOr<Summary> summary = ReadSummary(folder.summary());
  if (!summary.ok() && !absl::IsNotFound(summary.status())) return summary.status();
  if (summary.ok()) {
    run.summary = *summary;
  } else {
    const absl::StatusOr<Metrics> metrics = ReadMetrics(folder.metrics());
    if (!metrics.ok() && !absl::IsNotFound(metrics.status())) return metrics.status();
    run.summary = SummarizeMetrics(metrics.value_or(Metrics()));
  }
  SetState(launch.ok() ? std::optional(*launch) : std::nullopt, summary.ok(), run);
  // A job of another release is no fault of the run. That of a program has no model.
  if (auto job = LoadJob(folder.job()); job.ok()) {
    run.job = *std::move(job);
  } else if (const auto text = JobText::ReadFile(folder.job()); text.ok() && !(*text)->job().has_model()) {
    run.job = (*text)->job();
  }
  run.mode = run.job.has_value() ? DescribeMode(*run.job) : run.summary.mode;
  if (run.summary.job.empty()) {
    run.summary.job = run.job.has_value() ? run.job->name() : std::filesystem::path(folder.path()).filename().string();
  }
  return run;
}

absl::StatusOr<RunList> ListRuns(const std::string& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    return absl::NotFoundError(
        absl::StrCat("\"", directory, "\" is no directory; ballast launch writes its runs to ", kRuns));
  }
  RunList list;
  if (HoldsRun(directory)) {
    absl::StatusOr<RunInfo> run = ReadRun(directory);
    if (!run.ok()) return run.status();
    list.runs.push_back(*std::move(run));
    return list;
  }
  const bool sweep = std::filesystem::exists(absl::StrCat(directory, "/", kSweepFile), ignored);
  if (absl::Status status = AddRuns(directory, !sweep, list); !status.ok()) return status;
  std::sort(list.runs.begin(), list.runs.end(), [](const RunInfo& a, const RunInfo& b) {
    return std::tie(b.started, b.directory) < std::tie(a.started, a.directory);
  });
  return list;
}

bool IsBetter(const RunInfo& a, const RunInfo& b) { return Rank(a) < Rank(b); }

std::string TestText(const RunInfo& run) {
  if (run.summary.test_auc.has_value()) return absl::StrFormat("AUC %.4f", *run.summary.test_auc);
  if (run.summary.test_accuracy.has_value()) return absl::StrFormat("accuracy %.4f", *run.summary.test_accuracy);
  if (run.summary.test_loss.has_value()) return absl::StrFormat("loss %.4g", *run.summary.test_loss);
  return "-";
}

std::string ErrorText(const RunInfo& run) {
  constexpr size_t kMaxBytes = 100;
  const std::string line = run.error.substr(0, run.error.find('\n'));
  return line.empty() ? "" : absl::StrCat(": ", line.substr(0, kMaxBytes), line.size() > kMaxBytes ? "…" : "");
}

std::string EpochsText(const RunInfo& run) {
  // A stream has no last epoch, whatever limit its job states.
  const bool known = run.job.has_value() && !run.job->data().has_stream() && run.job->training().epochs() > 0;
  return absl::StrCat(run.summary.epochs, known ? absl::StrCat("/", run.job->training().epochs()) : "");
}

Json RunToJson(const RunInfo& run) {
  const Summary& summary = run.summary;
  return {{"directory", run.directory},
          {"job", summary.job},
          {"mode", run.mode},
          {"state", StateName(run.state)},
          {"error", run.error.empty() ? Json() : Json(run.error)},
          {"started", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", run.started, absl::UTCTimeZone())},
          {"epochs", summary.epochs},
          {"epochs_wanted", run.job.has_value() ? Json(run.job->training().epochs()) : Json()},
          {"steps", summary.steps},
          {"examples", summary.examples},
          {"seconds", summary.seconds},
          {"samples_per_second", summary.samples_per_second},
          {"train_loss", summary.train_loss},
          {"test_loss", OrNull(summary.test_loss)},
          {"test_accuracy", OrNull(summary.test_accuracy)},
          {"test_auc", OrNull(summary.test_auc)},
          {"bayes_auc", OrNull(summary.bayes_auc)},
          {"log_loss", OrNull(summary.log_loss)}};
}

std::string TextTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      const bool last = column + 1 == row.size();
      absl::StrAppend(&text, row[column], last ? "\n" : std::string(widths[column] - row[column].size() + 2, ' '));
    }
  }
  return text;
}

}  // namespace ballast
