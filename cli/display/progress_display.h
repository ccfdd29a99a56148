// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/concurrency/clock.h"
#include "common/run/metrics.h"

namespace ballast {

// Shows a job's progress: one line updated in place on a terminal, or a plain line every few seconds elsewhere. Print
// other lines through it, so that they do not run into the bar. Thread safety: confined to one thread.
class ProgressDisplay {
 public:
  struct Options {
    // Update one line in place instead of printing plain lines.
    bool in_place = false;
    // Draw the bar in UTF-8 and color.
    bool rich = false;
    // Returns the terminal's columns; called for each drawing.
    std::function<int()> width = [] { return 80; };
    // Interval between plain lines.
    absl::Duration interval = absl::Seconds(3);
    // Epochs of the job; 0: its progress tells.
    int64_t epochs = 0;
    // The job has a stream of data, whose end nobody knows.
    bool endless = false;
    // The run's metrics.jsonl, which says when an epoch is done; empty: no lines about epochs.
    std::string metrics;
  };
  ProgressDisplay(Options options, std::ostream* out, const Clock* clock);

  void Update(const v1::JobProgress& progress);
  // `line` has no newline.
  void PrintLine(absl::string_view line);
  // Prints the last epochs and erases the bar; later updates show nothing.
  void Finish();

 private:
  // Prints the coordinator's notices about members since the last update.
  void PrintNotices(const v1::JobProgress& progress);
  // Prints the epochs that the metrics have ended since the previous call.
  void PrintEpochs();
  std::string Describe(const v1::JobProgress& progress) const;
  void Draw();
  void Erase();

  const Options options_;
  std::ostream* const out_;
  const Clock* const clock_;
  bool finished_ = false;
  bool drawn_ = false;
  // The text shown in place.
  std::string text_;
  double share_ = 0;
  // The job's number of epochs, from the progress.
  int64_t epochs_ = 0;
  // The last epoch whose line was printed.
  int64_t last_epoch_ = 0;
  std::optional<absl::Time> last_line_;
  MetricsTail metrics_;
  // Evaluations of epochs whose line is still to come.
  std::map<int64_t, TestMetrics> evaluations_;
  uint64_t notices_shown_ = 0;
};

// Returns the columns of the terminal on standard error; 80 if it is none.
int TerminalWidth();

// Returns "0:14" or "1:02:05"; "-:--" if negative, 100 days or more, or infinite.
std::string FormatClock(absl::Duration duration);

// Formats 21400.4 as "21,400"; "-" if not finite.
std::string FormatCount(double number);

}  // namespace ballast
