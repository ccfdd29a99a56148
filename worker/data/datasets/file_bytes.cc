// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

absl::Status ErrnoStatus(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<OpenedFile> OpenedFile::Open(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe blocks until it has a writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return ErrnoStatus(path, errno);
  OpenedFile file(descriptor);
  struct stat status;
  if (fstat(descriptor, &status) != 0) return ErrnoStatus(path, errno);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  file.size_ = status.st_size;
  return file;
}

OpenedFile::OpenedFile(OpenedFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

OpenedFile::~OpenedFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<FileBytes> FileBytes::Map(const std::string& path) {
  absl::StatusOr<OpenedFile> file = OpenedFile::Open(path);
  if (!file.ok()) return file.status();
  FileBytes bytes;
  // An empty file cannot be mapped.
  if (file->size() == 0) return bytes;
  void* const mapping = mmap(nullptr, file->size(), PROT_READ, MAP_PRIVATE, file->descriptor(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(path, errno);
  bytes.mapping_ = static_cast<const uint8_t*>(mapping);
  bytes.mapped_size_ = file->size();
  return bytes;
}

FileBytes::FileBytes(FileBytes&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_size_(std::exchange(other.mapped_size_, 0)),
      buffer_(std::move(other.buffer_)) {}

FileBytes& FileBytes::operator=(FileBytes&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_size_, other.mapped_size_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

FileBytes::~FileBytes() {
  if (mapping_ != nullptr) munmap(const_cast<uint8_t*>(mapping_), mapped_size_);
}

bool IsGzipPath(absl::string_view path) { return absl::EndsWith(path, ".gz"); }

}  // namespace ballast
