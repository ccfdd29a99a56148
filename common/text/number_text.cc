// SPDX-License-Identifier: Apache-2.0
#include "common/text/number_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace ballast {
namespace {

constexpr char kNotFinite[] = "not finite";

}  // namespace

std::string CountText(int64_t count) {
  std::string digits = absl::StrCat(count);
  const size_t first = count < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string ValueText(double value) {
  if (!std::isfinite(value)) return kNotFinite;
  const double magnitude = std::abs(value);
  if (magnitude >= 1000 && magnitude < 1e12) return CountText(std::llround(value));
  return absl::StrFormat("%.4g", value);
}

std::string PercentText(double share) {
  if (!std::isfinite(share)) return kNotFinite;
  return absl::StrFormat("%.2f%%", share * 100);
}

std::string DurationText(double seconds) {
  if (!std::isfinite(seconds) || std::abs(seconds) > 1e12) return kNotFinite;
  if (seconds < 10) return absl::StrFormat("%.1f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return absl::StrCat(whole, " s");
  if (whole < 600) return absl::StrCat(whole / 60, " min ", whole % 60, " s");
  if (whole < 3600) return absl::StrCat(whole / 60, " min");
  return absl::StrCat(CountText(whole / 3600), " h ", whole % 3600 / 60, " min");
}

std::string HtmlText(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string BytesText(double bytes) {
  if (!std::isfinite(bytes)) return "not finite";
  if (bytes < 1024) return absl::StrFormat("%.0f B", bytes);
  const char* unit = "";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = larger;
  }
  return absl::StrFormat("%.1f %s", bytes, unit);
}

int ParseRank(absl::string_view text) {
  int rank = -1;
  const size_t dash = text.rfind('-');
  // A dash that begins the text is the sign of a negative number.
  if (dash != absl::string_view::npos && dash > 0) text.remove_prefix(dash + 1);
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &rank)) return -1;
  return rank;
}

double AsWritten(float number) {
  double shortest = number;
  return absl::SimpleAtod(absl::StrCat(number), &shortest) ? shortest : number;
}

}  // namespace ballast
