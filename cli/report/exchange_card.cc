// SPDX-License-Identifier: Apache-2.0
#include "cli/report/exchange_card.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

// One row of a histogram.
struct Bar {
  std::string label;
  int64_t count = 0;
};

std::string MicrosecondsText(double microseconds) {
  const char* unit = "µs";
  double amount = microseconds;
  for (const char* larger : {"ms", "s"}) {
    if (amount < 1000) break;
    amount /= 1000;
    unit = larger;
  }
  return absl::StrFormat("%.*f %s", amount < 9.95 && amount != std::floor(amount) ? 1 : 0, amount, unit);
}

std::vector<Bar> StalenessBars(const std::vector<int64_t>& buckets) {
  std::vector<Bar> bars;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const int64_t low = i == 0 ? 0 : int64_t{1} << (i - 1);
    const int64_t high = i == 0 ? 0 : (int64_t{1} << i) - 1;
    bars.push_back({low == high ? CountText(low) : absl::StrCat(CountText(low), "–", CountText(high)), buckets[i]});
  }
  return bars;
}

// Combines two buckets per bar, because there are many, and skips the empty ones before the first wait.
std::vector<Bar> WaitBars(const std::vector<int64_t>& buckets) {
  std::vector<Bar> bars = {{"none", buckets.empty() ? 0 : buckets[0]}};
  for (size_t i = 1; i < buckets.size(); i += 2) {
    const int64_t count = buckets[i] + (i + 1 < buckets.size() ? buckets[i + 1] : 0);
    if (bars.size() == 1 && count == 0) continue;
    bars.push_back({absl::StrCat("under ", MicrosecondsText(std::ldexp(1.0, static_cast<int>(i) + 1))), count});
  }
  return bars;
}

std::string RenderBars(absl::string_view title, absl::string_view subtitle, const std::vector<Bar>& bars) {
  int64_t all = 0, most = 0;
  for (const Bar& bar : bars) {
    all += bar.count;
    most = std::max(most, bar.count);
  }
  if (all == 0) return "";
  std::string html = absl::StrCat("<div><span class=\"title\">", title, "</span> <span class=\"subtitle\">", subtitle,
                                  "</span>\n<table class=\"bars\">\n");
  for (const Bar& bar : bars) {
    absl::StrAppend(&html, "<tr><th>", bar.label,
                    "</th><td><i style=\"width:", absl::StrFormat("%.1f", 100.0 * bar.count / most),
                    "%\"></i></td><td>", PercentText(static_cast<double>(bar.count) / all), "</td></tr>\n");
  }
  return absl::StrCat(html, "</table></div>\n");
}

std::string Fact(absl::string_view name, const std::string& value) {
  return absl::StrCat("<tr><td>", name, "</td><td>", value, "</td></tr>\n");
}

}  // namespace

std::string RenderExchangeCard(const Summary& summary) {
  if (summary.bytes_sent == 0 && summary.staleness.buckets.empty()) return "";
  std::string html =
      "<section class=\"card\">\n<h2>Between workers and servers</h2>\n<div class=\"exchange\">\n<table>\n";
  absl::StrAppend(
      &html, Fact("Gradients", absl::StrCat(BytesText(summary.bytes_sent), " as ", HtmlText(summary.codec))),
      Fact("Values", absl::StrCat(BytesText(summary.bytes_received), " as ", HtmlText(summary.value_codec))),
      Fact("Worker 0 sent", absl::StrCat(BytesText(summary.bytes_sent_per_step), " per step")),
      Fact("Worker 0 received", absl::StrCat(BytesText(summary.bytes_received_per_step), " per step")),
      Fact("Worker 0 waited", PercentText(summary.wait_share)),
      Fact("Staleness",
           absl::StrCat("mean ", ValueText(summary.mean_staleness), ", maximum ", CountText(summary.max_staleness))),
      Fact("Late gradients dropped", CountText(summary.dropped)));
  if (summary.loss_scale.has_value()) {
    absl::StrAppend(&html, Fact("Worker 0 skipped",
                                absl::StrCat(CountText(summary.skipped_steps), " batches that overflowed; loss scale ",
                                             ValueText(*summary.loss_scale))));
  }
  absl::StrAppend(&html, "</table>\n");
  // If all bars are 0, the table says enough.
  if (summary.staleness.max > 0) {
    absl::StrAppend(&html, RenderBars("Staleness", "updates, pull to apply", StalenessBars(summary.staleness.buckets)));
  }
  if (summary.wait_microseconds.max > 0) {
    const std::string subtitle =
        absl::StrCat("for other workers; mean ", MicrosecondsText(summary.wait_microseconds.mean), ", maximum ",
                     MicrosecondsText(summary.wait_microseconds.max));
    absl::StrAppend(&html, RenderBars("Pull waits", subtitle, WaitBars(summary.wait_microseconds.buckets)));
  }
  return absl::StrCat(html, "</div>\n</section>\n");
}

}  // namespace ballast
