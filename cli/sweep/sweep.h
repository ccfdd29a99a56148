// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/display/log_merger.h"
#include "cli/hosts/supervisor.h"
#include "cli/report/run_catalog.h"

namespace ballast {

// A run of a sweep.
struct SweepRun {
  // Its values that differ from those of other runs: "learning_rate=0.01".
  std::string name;
  std::string run_dir;
  // The command that trains it.
  std::vector<std::string> argv;
  // Its result; absent if it was not started.
  std::optional<RunInfo> result;
};

// Owns the processes of a sweep, from the first start to the last end, and runs some of its runs at a time, in their
// order. A run that fails does not stop the others. On SIGINT, SIGTERM or SIGHUP, no further run starts, and each one
// that is running gets the signal, upon which it saves its model and stops. No process outlives this object. Knows
// nothing of the runs except their processes and directories. Thread safety: confined to the main thread.
class Sweep : private ProcessListener {
 public:
  struct Options {
    int parallel = 1;
    // Directory for the output of each run; it exists.
    std::string log_dir;
    // Shows that output, too.
    bool verbose = false;
    // Redraws one line of progress, instead of a line every minute.
    bool terminal = false;
  };

  // Timeout for runs to stop after a signal: longer than a launch takes at most.
  static constexpr absl::Duration kStop = absl::Seconds(60);

  // `on_end` is called after each run.
  Sweep(Options options, std::vector<SweepRun> runs, std::ostream* err, std::function<void()> on_end);

  // Blocks until every run has ended. Call at most once. An error means that no run could be started.
  absl::Status Run();

  const std::vector<SweepRun>& runs() const { return runs_; }
  // A signal ended the sweep.
  bool interrupted() const { return signals_ > 0; }

 private:
  void OnOutput(int child, absl::string_view bytes) override { logs_.Write(child, bytes); }
  void OnEnd(int child, const ExitStatus& status) override;
  void OnSignal(int signal) override;

  // Starts runs until enough are running.
  void StartRuns();
  void StartRun(SweepRun& run);
  // Records a result and prints it.
  void Finish(SweepRun& run, RunInfo result);
  void Print(absl::string_view line);
  void ShowProgress();

  const Options options_;
  std::vector<SweepRun> runs_;
  std::ostream* const err_;
  const std::function<void()> on_end_;
  LogMerger logs_;
  std::unique_ptr<Supervisor> supervisor_;
  // Index of each child's run.
  std::vector<size_t> run_of_child_;
  size_t next_ = 0;
  size_t ended_ = 0;
  int running_ = 0;
  int signals_ = 0;
  absl::Time deadline_ = absl::InfiniteFuture();
  absl::Time next_progress_ = absl::InfinitePast();
};

}  // namespace ballast
