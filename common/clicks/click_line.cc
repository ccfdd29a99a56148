// SPDX-License-Identifier: Apache-2.0
#include "common/clicks/click_line.h"

#include "absl/strings/str_cat.h"

namespace ballast {

void AppendClickLine(const ClickRow& row, std::string& text) {
  text.push_back(row.clicked ? '1' : '0');
  for (const auto& number : row.numbers) {
    text.push_back('\t');
    if (number.has_value()) absl::StrAppend(&text, *number);
  }
  for (const auto& category : row.categories) {
    text.push_back('\t');
    if (category.has_value()) absl::StrAppend(&text, absl::Hex(*category, absl::kZeroPad8));
  }
  text.push_back('\n');
}

}  // namespace ballast
