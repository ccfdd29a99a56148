// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/storage/checksum.h"
#include "common/storage/file_system.h"

namespace ballast {

// A file of records, each with its position and checksums. All numbers are little-endian; a record begins at a multiple
// of 8 bytes:
//
//   bytes 0-7    "BALLREC1"
//   bytes 8-15   position: previous record's position plus 1
//   bytes 16-23  highest position known to be on disk when this record was written
//   bytes 24-31  length of the body
//   bytes 32-39  XXH3 (64 bits) of the body
//   bytes 40-47  XXH3 (64 bits) of bytes 0-39
//   the body, then zeros up to a multiple of 8
//
// In a reused file, zeros follow the last record and then, up to the end of the file, old records whose positions are
// below its first.
inline constexpr size_t kRecordHeaderBytes = 48;

// Bodies are never longer; a header with a larger length is damaged.
inline constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 30;

// Identifies the content of a record file: the length of its complete records, and the 64-bit XXH3 checksum of their
// headers, in order. Each header has the checksum of its body, so files with equal digests differ at most in padding.
struct LogDigest {
  uint64_t bytes = 0;
  uint64_t checksum = 0;
  bool operator==(const LogDigest& other) const { return bytes == other.bytes && checksum == other.checksum; }
};

// Appends records to a new file. Thread safety: none, but Sync may run concurrently with Append.
class RecordWriter {
 public:
  // `first` is the position of the first record. ALREADY_EXISTS if the file exists.
  static absl::StatusOr<std::unique_ptr<RecordWriter>> Create(FileSystem* files, const std::string& path,
                                                              uint64_t first);

  // Like Create, but overwrites another file, whose records all have lower positions; see FileSystem::Reuse.
  static absl::StatusOr<std::unique_ptr<RecordWriter>> Reuse(FileSystem* files, const std::string& from,
                                                             const std::string& path, uint64_t first);

  // Appends one record whose body is the concatenation of the parts, completely or not at all. RESOURCE_EXHAUSTED if
  // the disk is full; a retry is then safe. `synced` is the highest position that the caller knows to be on disk, in
  // this file or an earlier one.
  absl::Status Append(absl::Span<const absl::string_view> parts, uint64_t synced);

  absl::Status Sync() { return file_->Sync(); }

  // Position of the next record.
  uint64_t next() const { return next_; }
  uint64_t size() const { return file_->size(); }
  // Digest of all appended records.
  LogDigest digest() const { return {file_->size(), headers_.value()}; }

 private:
  RecordWriter(std::unique_ptr<AppendFile> file, uint64_t first) : file_(std::move(file)), next_(first) {}

  std::unique_ptr<AppendFile> file_;
  uint64_t next_;
  StreamChecksum headers_;
};

// Reads records in order and distinguishes a torn end from damage: bytes torn by a crash are never followed by a
// record that was written after they were on disk. Thread safety: none.
class RecordReader {
 public:
  struct Record {
    uint64_t position = 0;
    // Highest position that its writer knew to be on disk.
    uint64_t synced = 0;
    uint64_t offset = 0;
    std::string body;
  };

  // `first` is the position that the first record must have. NOT_FOUND if the file does not exist.
  static absl::StatusOr<std::unique_ptr<RecordReader>> Open(const std::string& path, uint64_t first);
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;

  // Returns the next complete record; nullopt at the end, torn or not. DATA_LOSS, with file and offset, for a damaged
  // record that was on disk before a later one was written.
  absl::StatusOr<std::optional<Record>> Next();

  // Valid once Next has returned nullopt: the end of the complete records, and the bytes after it. `torn` is true for
  // any bytes, `unfinished` counts only those that are not old content of a reused file.
  uint64_t end() const { return offset_; }
  bool torn() const { return offset_ < size_; }
  uint64_t unfinished() const { return unfinished_; }
  uint64_t size() const { return size_; }
  // Position of the next record to write.
  uint64_t next() const { return next_; }
  // Digest of the records read.
  LogDigest digest() const { return {offset_, headers_.value()}; }

 private:
  RecordReader(int fd, std::string path, uint64_t size, uint64_t first)
      : fd_(fd), path_(std::move(path)), size_(size), first_(first), next_(first) {}
  struct Header;
  absl::Status ReadAt(uint64_t offset, size_t bytes, char* to) const;
  absl::StatusOr<std::optional<Header>> HeaderAt(uint64_t offset) const;
  // DATA_LOSS if later records follow the faulty one, which then is not a torn end.
  absl::StatusOr<bool> CheckTorn(absl::string_view fault) const;
  absl::StatusOr<bool> ZerosAt(uint64_t offset) const;

  const int fd_;
  const std::string path_;
  const uint64_t size_;
  const uint64_t first_;
  uint64_t next_;
  uint64_t offset_ = 0;
  uint64_t unfinished_ = 0;
  StreamChecksum headers_;
};

}  // namespace ballast
