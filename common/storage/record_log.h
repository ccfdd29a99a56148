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
//   bytes 8-15   position: that of the record before and 1
//   bytes 16-23  the highest position that was known to be on the disk when this record was written
//   bytes 24-31  length of the body
//   bytes 32-39  XXH3 (64 bits) of the body
//   bytes 40-47  XXH3 (64 bits) of bytes 0-39
//   the body, then zeros up to a multiple of 8
//
// A file may have had a life before: behind its last record then lie zeros and, to its end, records of lower positions
// than its first.
inline constexpr size_t kRecordHeaderBytes = 48;

// Bodies are no longer; what says otherwise is damaged.
inline constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 30;

// Says what a file of records holds: the length of its whole records, and the XXH3 (64 bits) of their headers, one
// after another. Each header has the checksum of its body, so two files with equal digests differ in padding at most.
struct LogDigest {
  uint64_t bytes = 0;
  uint64_t checksum = 0;
  bool operator==(const LogDigest& other) const { return bytes == other.bytes && checksum == other.checksum; }
};

// Appends records to a new file. Thread safety: none, but Sync may run beside Append.
class RecordWriter {
 public:
  // `first` is the position of the first record. ALREADY_EXISTS where there is such a file.
  static absl::StatusOr<std::unique_ptr<RecordWriter>> Create(FileSystem* files, const std::string& path,
                                                              uint64_t first);

  // The same in the place of another file, whose records all have lower positions; FileSystem::Reuse says how.
  static absl::StatusOr<std::unique_ptr<RecordWriter>> Reuse(FileSystem* files, const std::string& from,
                                                             const std::string& path, uint64_t first);

  // Of which the parts make the body: the record is there whole or not at all. RESOURCE_EXHAUSTED where the disk is
  // full; a retry is safe then. `synced`: what the caller knows to be on the disk, here or in earlier files.
  absl::Status Append(absl::Span<const absl::string_view> parts, uint64_t synced);

  absl::Status Sync() { return file_->Sync(); }

  // Of the next record.
  uint64_t next() const { return next_; }
  uint64_t size() const { return file_->size(); }
  // All that was appended.
  LogDigest digest() const { return {file_->size(), headers_.value()}; }

 private:
  RecordWriter(std::unique_ptr<AppendFile> file, uint64_t first) : file_(std::move(file)), next_(first) {}

  std::unique_ptr<AppendFile> file_;
  uint64_t next_;
  StreamChecksum headers_;
};

// Reads records in order and tells a torn end from damage: what was cut off by a crash has nothing behind it that
// was written later than the disk had it. Thread safety: none.
class RecordReader {
 public:
  struct Record {
    uint64_t position = 0;
    // What its writer knew to be on the disk.
    uint64_t synced = 0;
    uint64_t offset = 0;
    std::string body;
  };

  // `first` is the position that the first record must have. NOT_FOUND where there is no such file.
  static absl::StatusOr<std::unique_ptr<RecordReader>> Open(const std::string& path, uint64_t first);
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;

  // The next whole record; nothing at the end, torn or not. DATA_LOSS, with file and offset, where a record is damaged
  // that had been on the disk before a later one was written.
  absl::StatusOr<std::optional<Record>> Next();

  // Once Next has answered with nothing: where the whole records end, and what is behind that. Of `torn` bytes none
  // may be `unfinished`: those of the file's former life are not.
  uint64_t end() const { return offset_; }
  bool torn() const { return offset_ < size_; }
  uint64_t unfinished() const { return unfinished_; }
  uint64_t size() const { return size_; }
  // Position of the record that would come next.
  uint64_t next() const { return next_; }
  // The records that were read.
  LogDigest digest() const { return {offset_, headers_.value()}; }

 private:
  RecordReader(int fd, std::string path, uint64_t size, uint64_t first)
      : fd_(fd), path_(std::move(path)), size_(size), first_(first), next_(first) {}
  struct Header;
  absl::Status ReadAt(uint64_t offset, size_t bytes, char* to) const;
  absl::StatusOr<std::optional<Header>> HeaderAt(uint64_t offset) const;
  // Whether later records lie behind the faulty one.
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
