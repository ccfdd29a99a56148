// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Collects the errors of a job file. Write conditions so that NaN fails them. Thread safety: none.
class ValidationErrors {
 public:
  template <typename T>
  void Add(absl::string_view field, const T& got, absl::string_view want) {
    messages_.push_back(absl::StrCat(field, ": got ", got, ", want ", want));
  }

  template <typename T>
  void Check(bool good, absl::string_view field, const T& got, absl::string_view want) {
    if (!good) Add(field, got, want);
  }

  void CheckText(bool good, absl::string_view field, absl::string_view got, absl::string_view want) {
    Check(good, field, absl::StrCat("\"", absl::CEscape(got.substr(0, 80)), "\""), want);
  }

  void Add(const absl::Status& status) {
    if (!status.ok()) messages_.emplace_back(status.message());
  }

  // INVALID_ARGUMENT with the first alone.
  absl::Status First() const { return messages_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(messages_[0]); }

  // INVALID_ARGUMENT with a line for each of the first five.
  absl::Status ToStatus() const {
    constexpr size_t kMaxReported = 5;
    if (messages_.empty()) return absl::OkStatus();
    const size_t shown = std::min(messages_.size(), kMaxReported);
    std::string text = absl::StrJoin(messages_.begin(), messages_.begin() + shown, "\n");
    if (shown < messages_.size()) {
      absl::StrAppend(&text, "\nand ", messages_.size() - shown, " more");
    }
    return absl::InvalidArgumentError(text);
  }

 private:
  std::vector<std::string> messages_;
};

}  // namespace ballast
