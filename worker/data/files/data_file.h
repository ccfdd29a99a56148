// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
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

  absl::Span<const uint8_t> bytes() const {
    if (mapping_ == nullptr) return buffer_;
    return absl::MakeConstSpan(mapping_.get(), mapping_.get_deleter().size);
  }
  absl::string_view text() const { return {reinterpret_cast<const char*>(bytes().data()), bytes().size()}; }

 private:
  struct Unmap {
    size_t size;
    void operator()(const uint8_t* mapping) const;
  };

  FileBytes() = default;

  std::unique_ptr<const uint8_t, Unmap> mapping_;
  std::vector<uint8_t> buffer_;
};

// Returns whether the path ends in ".gz".
bool IsGzipPath(absl::string_view path);

// Decompresses a gzip file (RFC 1952, including files of several members) piece by piece, in constant memory.
// Thread safety: one thread at a time.
class GzipReader {
 public:
  // NOT_FOUND if there is no file, INVALID_ARGUMENT if it is not a regular file. Only Read checks the gzip format.
  static absl::StatusOr<std::unique_ptr<GzipReader>> Open(const std::string& path);

  virtual ~GzipReader() = default;

  // Fills the buffer, and returns fewer bytes only at the end of the file. DATA_LOSS if the file is damaged or
  // truncated, INVALID_ARGUMENT if it is not gzip; the message names the byte of the file.
  virtual absl::StatusOr<size_t> Read(absl::Span<uint8_t> buffer) = 0;

  // Upper bound on the decompressed size, from deflate's maximum ratio of 1032 to 1 (zlib's technical notes).
  virtual uint64_t most_bytes() const = 0;
};

}  // namespace ballast
