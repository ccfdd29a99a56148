// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/data/files/data_file.h"

namespace ballast {

// Result of parsing a number at the beginning of a text.
struct TextNumber {
  // NaN if the text does not begin with a number in the range of float32. Double, because normalization may leave only
  // digits that float32 lacks.
  double value = std::numeric_limits<double>::quiet_NaN();
  // The first character after the number.
  const char* end = nullptr;
};

inline TextNumber ParseNumber(const char* begin, const char* end) {
  // std::from_chars does not accept a plus sign.
  if (end - begin > 1 && *begin == '+' && begin[1] != '-') ++begin;
  double value = 0;
  const std::from_chars_result result = std::from_chars(begin, end, value);
  if (result.ec != std::errc() || !std::isfinite(static_cast<float>(value))) return {.end = result.ptr};
  return {value, result.ptr};
}

// Returns the error for a text that ParseNumber does not consume completely: `what is "abc", want a finite number`.
inline absl::Status NotANumber(absl::string_view what, absl::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(what, " is empty, want a number"));
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is \"", absl::CEscape(text.substr(0, 40)), "\", want a finite number"));
}

// Owns a text file, or a text in memory, and the offsets of its rows, so that rows can be read in any order. A plain
// file stays mapped; the rows of a .gz file are kept in memory. Knows nothing of the format of a row. A byte order mark
// of UTF-8 is skipped. Thread safety: immutable.
class TextRows {
 public:
  // Returns true for a row and false for one that is to be skipped; an error ends the reading. Rows are passed without
  // their "\n" or "\r\n", and with the number of their first line, from 1.
  using RowCheck = std::function<absl::StatusOr<bool>(absl::string_view row, uint64_t line)>;
  // Returns the position of the "\n" that ends the first row of a text, or npos if the text does not hold it.
  using RowEnd = std::function<size_t(absl::string_view text)>;
  struct TextOptions {
    // Lines that precede the text.
    uint64_t lines_before = 0;
    // Accepts a text without rows.
    bool may_be_empty = false;
  };

  // LineEnd of formats whose rows are lines.
  static size_t LineEnd(absl::string_view text) { return text.find('\n'); }

  // Reads the whole file once. An error of `check` is returned as "path:line: error". INVALID_ARGUMENT for a file
  // without rows.
  static absl::StatusOr<TextRows> Open(const std::string& path, const RowCheck& check, RowEnd row_end = LineEnd);

  // The same for rows in memory. Errors call them `name`.
  static absl::StatusOr<TextRows> OfText(const std::string& name, absl::string_view text, const RowCheck& check,
                                         RowEnd row_end, const TextOptions& options);
  static absl::StatusOr<TextRows> OfText(const std::string& name, absl::string_view text, const RowCheck& check,
                                         RowEnd row_end = LineEnd) {
    return OfText(name, text, check, std::move(row_end), TextOptions());
  }

  uint64_t size() const { return begins_.size(); }
  absl::string_view Row(uint64_t index) const;

 private:
  TextRows(FileBytes bytes, RowEnd row_end) : bytes_(std::move(bytes)), row_end_(std::move(row_end)) {}
  static absl::StatusOr<TextRows> OpenPlain(const std::string& path, const RowCheck& check, const RowEnd& row_end);
  static absl::StatusOr<TextRows> TakeAll(const std::string& name, FileBytes bytes, const RowCheck& check,
                                          const RowEnd& row_end, uint64_t lines_before = 0);
  static absl::StatusOr<TextRows> OpenCompressed(const std::string& path, const RowCheck& check, const RowEnd& row_end);

  FileBytes bytes_;
  RowEnd row_end_;
  std::vector<uint64_t> begins_;
};

}  // namespace ballast
