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
  // NOT_FOUND where there is none, INVALID_ARGUMENT for what is no regular file.
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

// Owns the bytes of a data file: a read-only mapping of it, or a buffer that they were decompressed into. The file must
// not shrink while it is mapped.
//
// Thread safety: immutable.
class FileBytes {
 public:
  // Maps a plain file, with the errors of OpenedFile::Open.
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

// Whether a path's ending says that the file is compressed.
bool IsGzipPath(absl::string_view path);

}  // namespace ballast
