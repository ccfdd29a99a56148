// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Result of parsing a number at the beginning of a text.
struct TextNumber {
  // NaN if the text does not begin with a finite float32.
  float value = std::numeric_limits<float>::quiet_NaN();
  // The first character after the number.
  const char* end = nullptr;
};

inline TextNumber ParseNumber(const char* begin, const char* end) {
  // std::from_chars does not accept a plus sign.
  if (end - begin > 1 && *begin == '+' && begin[1] != '-') ++begin;
  double value = 0;
  const std::from_chars_result result = std::from_chars(begin, end, value);
  const float narrow = static_cast<float>(value);
  if (result.ec != std::errc() || !std::isfinite(narrow)) return {.end = result.ptr};
  return {narrow, result.ptr};
}

// Returns the error for a text that ParseNumber does not consume completely: `what is "abc", want a finite number`.
inline absl::Status NotANumber(absl::string_view what, absl::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(what, " is empty, want a number"));
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is \"", absl::CEscape(text.substr(0, 40)), "\", want a finite number"));
}

}  // namespace ballast
