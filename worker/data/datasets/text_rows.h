// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/datasets/file_bytes.h"

namespace ballast {

// Owns a text file and the offsets of its rows, so that rows can be read in any order. A plain file stays mapped; the
// rows of a .gz file are kept in memory. Knows nothing of the format of a row. Thread safety: immutable.
class TextRows {
 public:
  // Returns true if a line is a row and false if it is to be skipped; an error ends the reading. Lines count from 1 and
  // are passed without their "\n" or "\r\n".
  using LineCheck = std::function<absl::StatusOr<bool>(absl::string_view line, uint64_t number)>;

  // Reads the whole file once. An error of `check` is returned as "path:line: error". INVALID_ARGUMENT for a file
  // without rows.
  static absl::StatusOr<TextRows> Open(const std::string& path, const LineCheck& check);

  uint64_t size() const { return begins_.size(); }
  absl::string_view Row(uint64_t index) const;

 private:
  explicit TextRows(FileBytes bytes) : bytes_(std::move(bytes)) {}
  static absl::StatusOr<TextRows> OpenPlain(const std::string& path, const LineCheck& check);
  static absl::StatusOr<TextRows> OpenCompressed(const std::string& path, const LineCheck& check);

  FileBytes bytes_;
  std::vector<uint64_t> begins_;
};

}  // namespace ballast
