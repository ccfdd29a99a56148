// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// Owns the descriptor of a regular file that is open for reading.
class OpenedFile {
 public:
  // NOT_FOUND if there is no file, INVALID_ARGUMENT if it is not a regular file.
  static absl::StatusOr<OpenedFile> Open(const std::string& path);

  OpenedFile(OpenedFile&& other) noexcept;
  OpenedFile& operator=(OpenedFile&&) = delete;
  ~OpenedFile();

  int descriptor() const { return descriptor_; }
  uint64_t size() const { return size_; }

 private:
  explicit OpenedFile(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
  uint64_t size_ = 0;
};

// Owns the bytes of a data file, either as a read-only mapping or as a buffer of decompressed data. The file must not
// shrink while it is mapped. Thread safety: immutable.
class FileBytes {
 public:
  // Maps an uncompressed file. Same errors as OpenedFile::Open.
  static absl::StatusOr<FileBytes> Map(const std::string& path);

  explicit FileBytes(std::vector<uint8_t> bytes) : buffer_(std::move(bytes)) {}
  FileBytes(FileBytes&& other) noexcept;
  FileBytes& operator=(FileBytes&& other) noexcept;
  ~FileBytes();

  absl::Span<const uint8_t> bytes() const {
    return mapping_ == nullptr ? absl::MakeConstSpan(buffer_) : absl::MakeConstSpan(mapping_, mapped_size_);
  }
  absl::string_view text() const { return {reinterpret_cast<const char*>(bytes().data()), bytes().size()}; }

 private:
  FileBytes() = default;

  const uint8_t* mapping_ = nullptr;
  size_t mapped_size_ = 0;
  std::vector<uint8_t> buffer_;
};

// Returns whether the path ends in ".gz".
bool IsGzipPath(absl::string_view path);

}  // namespace ballast
