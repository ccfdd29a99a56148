// SPDX-License-Identifier: Apache-2.0
#include "worker/data/files/data_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
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
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
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
  bytes.mapping_ = {static_cast<const uint8_t*>(mapping), Unmap{file->size()}};
  return bytes;
}

void FileBytes::Unmap::operator()(const uint8_t* mapping) const { munmap(const_cast<uint8_t*>(mapping), size); }

bool IsGzipPath(absl::string_view path) { return absl::EndsWith(path, ".gz"); }

namespace {

constexpr uint64_t kMaxExpansion = 1032;
// zlib counts in 32 bits.
constexpr size_t kMaxReadBytes = 1 << 30;

class ZlibReader : public GzipReader {
 public:
  ZlibReader(const std::string& path, OpenedFile file) : path_(path), file_(std::move(file)) {}
  ~ZlibReader() override {
    if (open_) inflateEnd(&stream_);
  }

  absl::Status Init() {
    // 16 selects the gzip format only.
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) {
      return absl::ResourceExhaustedError(absl::StrCat(path_, ": not enough memory to decompress it"));
    }
    open_ = true;
    return absl::OkStatus();
  }

  uint64_t most_bytes() const override { return file_.size() * kMaxExpansion; }

  absl::StatusOr<size_t> Read(absl::Span<uint8_t> buffer) override {
    size_t filled = 0;
    while (filled < buffer.size()) {
      if (stream_.avail_in == 0) {
        if (absl::Status status = Refill(); !status.ok()) return status;
        if (stream_.avail_in == 0 && between_members_ && members_ > 0) break;
        if (stream_.avail_in == 0) return EndedEarly();
      }
      stream_.next_out = buffer.data() + filled;
      const size_t room = std::min(buffer.size() - filled, kMaxReadBytes);
      stream_.avail_out = static_cast<uInt>(room);
      between_members_ = false;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      filled += room - stream_.avail_out;
      if (result == Z_STREAM_END) {
        ++members_;
        between_members_ = true;
        inflateReset(&stream_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return Damaged();
      }
    }
    return filled;
  }

 private:
  absl::Status Refill() {
    ssize_t got;
    do {
      got = read(file_.descriptor(), input_.data(), input_.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) return absl::UnavailableError(absl::StrCat(path_, ": ", std::strerror(errno)));
    read_ += got;
    stream_.next_in = input_.data();
    stream_.avail_in = static_cast<uInt>(got);
    return absl::OkStatus();
  }

  absl::Status EndedEarly() const {
    if (read_ == 0) return absl::InvalidArgumentError(absl::StrCat(path_, ": is empty, want gzip data"));
    return absl::DataLossError(
        absl::StrCat(path_, ": truncated: the file ends at byte ", read_, " in the middle of its gzip data"));
  }

  absl::Status Damaged() const {
    const uint64_t position = read_ - stream_.avail_in;
    const char* const why = stream_.msg == nullptr ? "bad data" : stream_.msg;
    if (members_ == 0 && stream_.total_out == 0 && position <= 10) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": not a gzip file: ", why, " at byte 0, want 1f 8b"));
    }
    return absl::DataLossError(absl::StrCat(path_, ": damaged gzip data before byte ", position, ": ", why));
  }

  const std::string path_;
  OpenedFile file_;
  z_stream stream_ = {};
  bool open_ = false;
  bool between_members_ = true;
  uint64_t members_ = 0;
  uint64_t read_ = 0;
  std::array<uint8_t, 1 << 16> input_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GzipReader>> GzipReader::Open(const std::string& path) {
  absl::StatusOr<OpenedFile> file = OpenedFile::Open(path);
  if (!file.ok()) return file.status();
  auto reader = std::make_unique<ZlibReader>(path, *std::move(file));
  if (absl::Status status = reader->Init(); !status.ok()) return status;
  return reader;
}

}  // namespace ballast
