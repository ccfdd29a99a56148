// SPDX-License-Identifier: Apache-2.0
#include "cli/sweep/sweep.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/display/progress_display.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

// Returns what the files of a run tell after its process has ended; or how the process ended, if it wrote none.
RunInfo ResultOf(const SweepRun& run, const ExitStatus& status, const std::string& last_error) {
  absl::StatusOr<RunInfo> result = ReadRun(run.run_dir);
  if (result.ok() && (result->state != RunState::kFinished || status.ok())) return *std::move(result);
  RunInfo failed;
  failed.directory = run.run_dir;
  failed.state = RunState::kFailed;
  failed.error = !last_error.empty() ? last_error : absl::StrCat("the launch ", status.ToString());
  failed.started = absl::Now();
  return failed;
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Sweep::Sweep(Options options, std::vector<SweepRun> runs, std::ostream* err, std::function<void()> on_end)
    : options_(std::move(options)),
      runs_(std::move(runs)),
      err_(err),
      on_end_(std::move(on_end)),
      logs_(
          options_.verbose ? [this](absl::string_view line) { Print(line); } : std::function<void(absl::string_view)>(),
          /*colour=*/false) {}

absl::Status Sweep::Run() {
  absl::StatusOr<std::unique_ptr<Supervisor>> supervisor = Supervisor::Create(this);
  if (!supervisor.ok()) return supervisor.status();
  supervisor_ = *std::move(supervisor);
  const absl::Duration interval = options_.terminal ? absl::Seconds(1) : absl::Minutes(1);
  next_progress_ = absl::Now() + interval;
  StartRuns();
  while (running_ > 0 && absl::Now() < deadline_) {
    supervisor_->Poll(std::max(std::min(next_progress_, deadline_) - absl::Now(), absl::ZeroDuration()));
    StartRuns();
    if (absl::Now() < next_progress_) continue;
    ShowProgress();
    next_progress_ = absl::Now() + interval;
  }
  // Kills what is left.
  supervisor_.reset();
  for (size_t run : run_of_child_) {
    if (!runs_[run].result.has_value()) Finish(runs_[run], ResultOf(runs_[run], {true, SIGKILL}, ""));
  }
  return absl::OkStatus();
}

void Sweep::StartRuns() {
  while (signals_ == 0 && running_ < options_.parallel && next_ < runs_.size()) StartRun(runs_[next_++]);
}

void Sweep::StartRun(SweepRun& run) {
  const std::string log =
      absl::StrCat(options_.log_dir, "/", std::filesystem::path(run.run_dir).filename().string(), ".log");
  absl::Status status = logs_.AddSource(run.name, log);
  if (status.ok()) {
    const absl::StatusOr<int> child = supervisor_->Start(run.argv);
    // Sources and children have the same numbers: a source is added for each start, and a failed start is the last.
    if (child.ok()) {
      run_of_child_.push_back(&run - runs_.data());
      ++running_;
      return;
    }
    status = child.status();
  }
  next_ = runs_.size();
  RunInfo failed;
  failed.directory = run.run_dir;
  failed.state = RunState::kFailed;
  failed.error = std::string(status.message());
  failed.started = absl::Now();
  Finish(run, std::move(failed));
}

void Sweep::OnEnd(int child, const ExitStatus& status) {
  logs_.Finish(child);
  --running_;
  SweepRun& run = runs_[run_of_child_[child]];
  Finish(run, ResultOf(run, status, logs_.LastError(child)));
}

void Sweep::OnSignal(int signal) {
  if (++signals_ == 1) {
    deadline_ = absl::Now() + kStop;
    Print("stopping: the runs save their models; press Ctrl-C again to stop immediately");
  }
  for (size_t child = 0; child < run_of_child_.size(); ++child) {
    if (supervisor_->running(static_cast<int>(child))) supervisor_->Signal(static_cast<int>(child), signal);
  }
}

void Sweep::Finish(SweepRun& run, RunInfo result) {
  run.result = std::move(result);
  ++ended_;
  std::string line =
      absl::StrFormat("run %d of %d done  %s  %s", ended_, runs_.size(), run.name, StateName(run.result->state));
  if (!run.result->error.empty()) {
    absl::StrAppend(&line, ": ", FirstLine(run.result->error));
  } else {
    absl::StrAppend(&line, "  test ", TestText(*run.result), "  ", DurationText(run.result->summary.seconds));
  }
  Print(line);
  on_end_();
}

void Sweep::Print(absl::string_view line) {
  // Erases the line of progress.
  if (options_.terminal) *err_ << "\r\x1b[K";
  *err_ << line << std::endl;
}

void Sweep::ShowProgress() {
  std::vector<std::string> parts;
  for (const size_t index : run_of_child_) {
    const SweepRun& run = runs_[index];
    if (run.result.has_value()) continue;
    const absl::StatusOr<RunInfo> now = ReadRun(run.run_dir);
    parts.push_back(now.ok() ? absl::StrCat(run.name, ": epochs ", EpochsText(*now), ", test ", TestText(*now))
                             : absl::StrCat(run.name, ": starting"));
  }
  const std::string line =
      absl::StrFormat("%d of %d runs done; running: %s", ended_, runs_.size(), absl::StrJoin(parts, "; "));
  if (options_.terminal) {
    // Leave the last column free: some terminals wrap as soon as it is written.
    *err_ << "\r\x1b[K" << line.substr(0, std::max(TerminalWidth() - 1, 1)) << std::flush;
  } else {
    *err_ << line << std::endl;
  }
}

}  // namespace ballast
