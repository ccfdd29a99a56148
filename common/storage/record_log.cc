// SPDX-License-Identifier: Apache-2.0
#include "common/storage/record_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/storage/checksum.h"

namespace ballast {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

namespace {

constexpr char kMagic[8] = {'B', 'A', 'L', 'L', 'R', 'E', 'C', '1'};

struct RawHeader {
  char magic[8];
  uint64_t position;
  uint64_t synced;
  uint64_t bytes;
  uint64_t body_checksum;
  uint64_t checksum;
};
static_assert(sizeof(RawHeader) == kRecordHeaderBytes);

uint64_t ChecksumOf(const RawHeader& header) {
  return Checksum({reinterpret_cast<const char*>(&header), offsetof(RawHeader, checksum)});
}

bool IsWhole(const RawHeader& header) {
  return std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0 && header.checksum == ChecksumOf(header) &&
         header.bytes <= kMaxRecordBytes;
}

uint64_t Padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

struct RecordReader::Header : RawHeader {};

absl::StatusOr<std::unique_ptr<RecordWriter>> RecordWriter::Create(FileSystem* files, const std::string& path,
                                                                   uint64_t first) {
  absl::StatusOr<std::unique_ptr<AppendFile>> file = files->Create(path);
  if (!file.ok()) return file.status();
  return std::unique_ptr<RecordWriter>(new RecordWriter(*std::move(file), first));
}

absl::StatusOr<std::unique_ptr<RecordWriter>> RecordWriter::Reuse(FileSystem* files, const std::string& from,
                                                                  const std::string& path, uint64_t first) {
  absl::StatusOr<std::unique_ptr<AppendFile>> file = files->Reuse(from, path);
  if (!file.ok()) return file.status();
  return std::unique_ptr<RecordWriter>(new RecordWriter(*std::move(file), first));
}

absl::Status RecordWriter::Append(absl::Span<const absl::string_view> parts, uint64_t synced) {
  RawHeader header{{}, next_, synced, 0, 0, 0};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  StreamChecksum body;
  std::vector<absl::string_view> all = {absl::string_view()};
  all.reserve(parts.size() + 2);
  for (absl::string_view part : parts) {
    body.Add(part);
    header.bytes += part.size();
    all.push_back(part);
  }
  if (header.bytes > kMaxRecordBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("record: got ", header.bytes, " bytes, want at most ", kMaxRecordBytes));
  }
  header.body_checksum = body.value();
  header.checksum = ChecksumOf(header);
  all[0] = {reinterpret_cast<const char*>(&header), sizeof(header)};
  static constexpr char kZeros[8] = {};
  all.emplace_back(kZeros, Padded(header.bytes) - header.bytes);
  if (absl::Status status = file_->Append(all); !status.ok()) return status;
  headers_.Add(all[0]);
  ++next_;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RecordReader>> RecordReader::Open(const std::string& path, uint64_t first) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  std::move(close_fd).Cancel();
  return std::unique_ptr<RecordReader>(new RecordReader(fd, path, info.st_size, first));
}

RecordReader::~RecordReader() { close(fd_); }

absl::Status RecordReader::ReadAt(uint64_t offset, size_t bytes, char* to) const {
  while (bytes > 0) {
    const ssize_t got = pread(fd_, to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, path_);
    if (got == 0) return absl::DataLossError(absl::StrCat(path_, ": became shorter while it was read"));
    offset += got;
    to += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RecordReader::Header>> RecordReader::HeaderAt(uint64_t offset) const {
  if (size_ - offset < kRecordHeaderBytes) return std::nullopt;
  Header header;
  if (absl::Status status = ReadAt(offset, sizeof(RawHeader), reinterpret_cast<char*>(&header)); !status.ok()) {
    return status;
  }
  if (!IsWhole(header)) return std::nullopt;
  return header;
}

absl::StatusOr<std::optional<RecordReader::Record>> RecordReader::Next() {
  if (offset_ == size_) return std::nullopt;
  const absl::StatusOr<std::optional<Header>> header = HeaderAt(offset_);
  if (!header.ok()) return header.status();
  absl::string_view fault;
  if (!header->has_value()) {
    fault = "has an incomplete header";
  } else if ((*header)->position < first_) {
    fault = "is an old record of a reused file";
  } else if ((*header)->position != next_) {
    // A complete record in the wrong place; a crash cannot cause that.
    return absl::DataLossError(
        absl::StrCat(path_, ": at offset ", offset_, ": got record ", (*header)->position, ", want record ", next_));
  } else if (size_ - offset_ - kRecordHeaderBytes < (*header)->bytes) {
    fault = "is truncated";
  } else {
    Record record{next_, (*header)->synced, offset_, std::string((*header)->bytes, '\0')};
    absl::Status status = ReadAt(offset_ + kRecordHeaderBytes, record.body.size(), record.body.data());
    if (!status.ok()) return status;
    if (Checksum(record.body) == (*header)->body_checksum) {
      headers_.Add({reinterpret_cast<const char*>(&**header), sizeof(RawHeader)});
      offset_ = std::min(size_, offset_ + kRecordHeaderBytes + Padded((*header)->bytes));
      ++next_;
      return record;
    }
    fault = "does not match its checksum";
  }
  const absl::StatusOr<bool> later = CheckTorn(fault);
  if (!later.ok()) return later.status();
  const absl::StatusOr<bool> zeros = ZerosAt(offset_);
  if (!zeros.ok()) return zeros.status();
  unfinished_ = *zeros && !*later ? 0 : size_ - offset_;
  return std::nullopt;
}

// Returns whether zeros follow, as they do after the last record of a reused file.
absl::StatusOr<bool> RecordReader::ZerosAt(uint64_t offset) const {
  std::string bytes(std::min<uint64_t>(sizeof(kMagic), size_ - offset), '\0');
  if (absl::Status status = ReadAt(offset, bytes.size(), bytes.data()); !status.ok()) return status;
  return bytes.find_first_not_of('\0') == std::string::npos;
}

// Looks for a later record that was written when the damaged one was already on disk.
absl::StatusOr<bool> RecordReader::CheckTorn(absl::string_view fault) const {
  constexpr uint64_t kChunk = uint64_t{1} << 20;
  std::string chunk;
  bool any_later = false;
  for (uint64_t start = offset_ + 8; start < size_; start += kChunk) {
    // A magic number may begin at the last multiple of 8 of a chunk.
    chunk.resize(std::min(kChunk, size_ - start));
    if (absl::Status status = ReadAt(start, chunk.size(), chunk.data()); !status.ok()) return status;
    for (size_t at = 0; at + sizeof(kMagic) <= chunk.size(); at += 8) {
      if (std::memcmp(chunk.data() + at, kMagic, sizeof(kMagic)) != 0) continue;
      const absl::StatusOr<std::optional<Header>> later = HeaderAt(start + at);
      if (!later.ok()) return later.status();
      if (!later->has_value() || (*later)->position <= next_) continue;
      any_later = true;
      if ((*later)->synced >= next_) {
        return absl::DataLossError(absl::StrCat(path_, ": record ", next_, " at offset ", offset_, " ", fault,
                                                ", but record ", (*later)->position, " follows"));
      }
    }
  }
  return any_later;
}

}  // namespace ballast
