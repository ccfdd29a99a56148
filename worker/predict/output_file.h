// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Owns a file that is written piece by piece and appears under its name when it is complete; or writes to standard
// output, a pipe or a device. Thread safety: none.
class OutputFile {
 public:
  // Writes to standard output if `path` is empty. Errors name the path.
  static absl::StatusOr<OutputFile> Open(const std::string& path);
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)), temporary_(std::move(other.temporary_)), file_(std::exchange(other.file_, -1)) {}
  OutputFile& operator=(OutputFile&&) = delete;
  // Removes a file that is not complete.
  ~OutputFile();

  absl::Status Write(absl::string_view text);
  // Call it once, after the last Write.
  absl::Status Finish();

 private:
  OutputFile(std::string path, std::string temporary, int file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}

  std::string path_;
  // Empty for standard output.
  std::string temporary_;
  // -1 once it is closed.
  int file_;
};

}  // namespace ballast
