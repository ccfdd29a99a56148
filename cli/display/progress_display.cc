// SPDX-License-Identifier: Apache-2.0
#include "cli/display/progress_display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ballast {
namespace {

constexpr int kMaxBarColumns = 40;
constexpr int kMinBarColumns = 8;

std::string Bar(double share, int columns, bool rich) {
  const int full = std::clamp(static_cast<int>(share * columns), 0, columns);
  std::string bar = rich ? "\x1b[36m" : "[";
  for (int i = 0; i < full; ++i) absl::StrAppend(&bar, rich ? "━" : "#");
  if (rich) absl::StrAppend(&bar, "\x1b[2;37m");
  for (int i = full; i < columns; ++i) absl::StrAppend(&bar, rich ? "━" : ".");
  return absl::StrCat(bar, rich ? "\x1b[0m" : "]");
}

std::string TestText(const TestMetrics& test) {
  std::string text = absl::StrFormat("  test loss %.4g", test.loss);
  if (test.accuracy.has_value()) absl::StrAppendFormat(&text, "  test accuracy %.4f", *test.accuracy);
  if (test.auc.has_value()) absl::StrAppendFormat(&text, "  test AUC %.4f", *test.auc);
  return text;
}

}  // namespace

ProgressDisplay::ProgressDisplay(Options options, std::ostream* out, const Clock* clock)
    : options_(std::move(options)), out_(out), clock_(clock), metrics_(options_.metrics) {}

void ProgressDisplay::Update(const v1::JobProgress& progress) {
  if (finished_) return;
  epochs_ = progress.epochs();
  PrintNotices(progress);
  PrintEpochs();
  // Examples lost with a worker are trained on, and counted, again.
  share_ =
      progress.total_examples() == 0
          ? 0
          : std::min(1.0, static_cast<double>(progress.examples()) / static_cast<double>(progress.total_examples()));
  text_ = Describe(progress);
  const absl::Time now = clock_->Now();
  if (options_.in_place) {
    Draw();
  } else if (!last_line_.has_value() || now - *last_line_ >= options_.interval) {
    last_line_ = now;
    *out_ << text_ << std::endl;
  }
}

void ProgressDisplay::PrintLine(absl::string_view line) {
  Erase();
  *out_ << line << "\n";
  if (options_.in_place && !finished_ && !text_.empty()) Draw();
  out_->flush();
}

void ProgressDisplay::Finish() {
  if (!finished_) PrintEpochs();
  Erase();
  out_->flush();
  finished_ = true;
}

void ProgressDisplay::PrintNotices(const v1::JobProgress& progress) {
  // The coordinator may have dropped the oldest notices.
  const uint64_t first = progress.notices_made() - progress.notices_size();
  for (int i = 0; i < progress.notices_size(); ++i) {
    if (first + i >= notices_shown_) PrintLine(progress.notices(i));
  }
  notices_shown_ = std::max(notices_shown_, progress.notices_made());
}

void ProgressDisplay::PrintEpochs() {
  if (options_.metrics.empty()) return;
  const Metrics lines = metrics_.Next();
  const int64_t epochs = options_.epochs > 0 ? options_.epochs : epochs_;
  // A test line precedes the line of its epoch, unless a program has evaluated later.
  for (const TestMetrics& test : lines.test) {
    if (test.epoch > last_epoch_) {
      evaluations_[test.epoch] = test;
    } else {
      PrintLine(absl::StrCat("epoch ", test.epoch, TestText(test)));
    }
  }
  for (const EpochMetrics& epoch : lines.epochs) {
    last_epoch_ = epoch.epoch;
    const std::string total = options_.endless ? "" : absl::StrCat("/", std::max(epochs, epoch.epoch));
    std::string line = absl::StrFormat("epoch %d%s done  train loss %.4g", epoch.epoch, total, epoch.train_loss);
    if (const auto test = evaluations_.find(epoch.epoch); test != evaluations_.end()) {
      absl::StrAppend(&line, TestText(test->second));
      evaluations_.erase(test);
    }
    PrintLine(absl::StrCat(line, "  ", FormatCount(epoch.samples_per_second), " samples/s"));
  }
}

std::string ProgressDisplay::Describe(const v1::JobProgress& progress) const {
  if (progress.state() == v1::JOB_STATE_GATHERING || progress.state() == v1::JOB_STATE_UNSPECIFIED) {
    return "starting";
  }
  const uint32_t epoch = std::min(progress.epoch() + 1, std::max(progress.epochs(), 1u));
  // A program may have data of its own, of which nobody knows the end.
  const bool endless = options_.endless || (progress.epochs() == 0 && progress.total_examples() == 0);
  std::string text = endless
                         ? absl::StrFormat("epoch %d  %s examples", epoch, FormatCount(progress.examples()))
                         : absl::StrFormat("%.0f%%  epoch %d/%d", std::floor(100 * share_), epoch, progress.epochs());
  if (progress.line().examples() == 0) return text;
  if (!endless) {
    const double left = (1 - share_) * static_cast<double>(progress.total_examples());
    absl::StrAppend(&text, "  eta ", FormatClock(absl::Seconds(left / progress.samples_per_second())));
  }
  absl::StrAppendFormat(&text, "  last %s examples: loss %.4g, %s/s", FormatCount(progress.line().examples()),
                        progress.train_loss(), FormatCount(progress.samples_per_second()));
  return text;
}

void ProgressDisplay::Draw() {
  // Leave the last column free: some terminals wrap as soon as it is written.
  const int width = std::max(options_.width() - 1, 1);
  const int room = width - static_cast<int>(2 + text_.size()) - (options_.rich ? 0 : 2);
  std::string line;
  if (room >= kMinBarColumns) {
    line = absl::StrCat(Bar(share_, std::min(room, kMaxBarColumns), options_.rich), "  ", text_);
  } else {
    line = text_.substr(0, width);
  }
  *out_ << "\r\x1b[K" << line << std::flush;
  drawn_ = true;
}

void ProgressDisplay::Erase() {
  if (drawn_) *out_ << "\r\x1b[K";
  drawn_ = false;
}

int TerminalWidth() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string FormatClock(absl::Duration duration) {
  if (duration < absl::ZeroDuration() || duration >= absl::Hours(100 * 24)) return "-:--";
  const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(duration, absl::Seconds(1)));
  if (seconds < 3600) return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

std::string FormatCount(double number) {
  if (!std::isfinite(number)) return "-";
  std::string digits = absl::StrFormat("%.0f", number);
  for (int at = static_cast<int>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) digits.insert(at, 1, ',');
  return digits;
}

}  // namespace ballast
