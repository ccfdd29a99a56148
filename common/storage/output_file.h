// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Owns a file that is written piece by piece and appears under its name when it is complete; or writes to standard
// output, a pipe or a device, which stays what it is. If the file system allows it, the file has no name until it is
// complete, so that nothing remains of it if the process is killed. Errors name the path. Thread safety: none.
class OutputFile {
 public:
  static absl::StatusOr<OutputFile> Open(const std::string& path);
  static OutputFile StandardOutput();
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)), temporary_(std::move(other.temporary_)), file_(std::exchange(other.file_, -1)) {}
  OutputFile& operator=(OutputFile&&) = delete;
  // Removes a file that is not complete.
  ~OutputFile();

  // RESOURCE_EXHAUSTED if the disk is full.
  absl::Status Write(absl::string_view text);
  // Makes the file durable and replaces an older one of this name. Call it once, after the last Write.
  absl::Status Finish();

 private:
  OutputFile(std::string path, std::string temporary, int file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}

  std::string path_;
  // The name before the file is complete. Empty for standard output, pipes and devices.
  std::string temporary_;
  // -1 once it is closed.
  int file_;
};

}  // namespace ballast
