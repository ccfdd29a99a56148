// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people, and text for HTML.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/text/number_text.h"  // IWYU pragma: export

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

}  // namespace ballast
