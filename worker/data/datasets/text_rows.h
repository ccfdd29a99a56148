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

// Owns a text file and the places of its rows, so that any row is at hand: a plain file stays mapped, of a .gz one the
// rows are kept in memory. Knows nothing of what a row says.
//
// Thread safety: immutable.
class TextRows {
 public:
  // Says whether a line is a row or to be left out; an error ends the reading. Lines count from 1 and come without
  // their "\n" or "\r\n".
  using LineCheck = std::function<absl::StatusOr<bool>(absl::string_view line, uint64_t number)>;

  // Reads a file once from end to end. An error of `check` comes back as "path:line: error"; INVALID_ARGUMENT too for
  // a file without rows.
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
