// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/concurrency/clock.h"

namespace ballast {

// Shows how far a job is: one line that changes in place on a terminal, a plain line every few seconds elsewhere.
// Other lines that must be seen meanwhile go through it, so that they do not run into the bar.
// Thread safety: confined to one thread.
class ProgressDisplay {
 public:
  struct Options {
    // One line that changes in place.
    bool in_place = false;
    // The bar is drawn in UTF-8 and colour.
    bool rich = false;
    // Columns of the terminal, asked at each drawing.
    std::function<int()> width = [] { return 80; };
    // Between plain lines.
    absl::Duration interval = absl::Seconds(3);
    // Examples that all workers take together in one step, to tell the number of steps; 0: not known.
    uint64_t examples_per_step = 0;
  };
  ProgressDisplay(Options options, std::ostream* out, const Clock* clock);

  void Update(const v1::JobProgress& progress);
  // Text without a newline.
  void PrintLine(absl::string_view line);
  // Takes the bar away; later updates show nothing.
  void Finish();

 private:
  // What befell members since the last time.
  void PrintNotices(const v1::JobProgress& progress);
  void PrintEvaluation(const v1::Evaluation& evaluation, uint32_t epochs);
  std::string Describe(const v1::JobProgress& progress) const;
  void Draw();
  void Erase();

  const Options options_;
  std::ostream* const out_;
  const Clock* const clock_;
  bool finished_ = false;
  bool drawn_ = false;
  // What is shown in place.
  std::string text_;
  double share_ = 0;
  std::optional<absl::Time> last_line_;
  uint32_t evaluated_epoch_ = 0;
  uint64_t notices_shown_ = 0;
};

// "0:14", "1:02:05"; "-:--" for what is not finite.
std::string FormatClock(absl::Duration duration);

// 21400.4 as "21,400".
std::string FormatCount(double number);

}  // namespace ballast
