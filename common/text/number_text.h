// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people, and text for HTML; reads ranks.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace ballast {

// 1234567 -> "1,234,567".
std::string CountText(int64_t count);

// Four significant digits without trailing zeros: 0.2531, 12, 1.2e-05; thousands as counts; "not finite".
std::string ValueText(double value);

// 0.8875 -> "88.75%".
std::string PercentText(double share);

// "0.4 s", "32 s", "1 min 32 s", "39 min", "2 h 5 min".
std::string DurationText(double seconds);

// Safe as an element's text and as a quoted attribute value.
std::string HtmlText(absl::string_view text);

// Returns "512 B", "1.5 KiB" or "3.0 MiB"; "not finite" for NaN and infinity.
std::string BytesText(double bytes);

// Returns the shortest decimal that rounds to the float: 0.0005 instead of 0.0005000000237.
double AsWritten(float number);

// Parses a rank: a number, or a pod name that ends in a dash and a number ("ballast-server-3"). -1 if it is neither.
int ParseRank(absl::string_view text);

}  // namespace ballast
