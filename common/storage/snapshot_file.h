// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/storage.pb.h"
#include "common/storage/file_system.h"
#include "common/storage/record_log.h"

namespace ballast {

// The newest format of snapshots and logs that this program writes, and reads.
inline constexpr uint32_t kStorageFormat = 1;

// Writes a shard's snapshot: a header, its slices, an end. A file without its end is none. Thread safety: none.
class SnapshotWriter {
 public:
  // Sets the header's format. ALREADY_EXISTS where there is such a file.
  static absl::StatusOr<std::unique_ptr<SnapshotWriter>> Create(FileSystem* files, const std::string& path,
                                                                v1::SnapshotHeader header);

  // Sets the number of elements and of arrays, which are equally long.
  absl::Status Add(v1::SliceState slice, absl::Span<const absl::Span<const float>> arrays);

  // Writes the end and syncs.
  absl::Status Finish();

  uint64_t size() const { return records_->size(); }

 private:
  explicit SnapshotWriter(std::unique_ptr<RecordWriter> records) : records_(std::move(records)) {}

  std::unique_ptr<RecordWriter> records_;
};

// Reads one; whatever is damaged or missing in it is DATA_LOSS with file and offset. Thread safety: none.
class SnapshotReader {
 public:
  struct SliceRecord {
    v1::SliceState state;
    std::vector<std::vector<float>> arrays;
  };

  // FAILED_PRECONDITION for a newer format.
  static absl::StatusOr<std::unique_ptr<SnapshotReader>> Open(const std::string& path);

  const v1::SnapshotHeader& header() const { return header_; }

  // The next slice; nothing once the end was read and nothing follows it.
  absl::StatusOr<std::optional<SliceRecord>> Next();

 private:
  SnapshotReader(std::unique_ptr<RecordReader> records, std::string path)
      : records_(std::move(records)), path_(std::move(path)) {}
  absl::StatusOr<absl::string_view> ReadRecord();

  std::unique_ptr<RecordReader> records_;
  const std::string path_;
  v1::SnapshotHeader header_;
  uint64_t read_ = 0;
  // Of the record that was read last.
  std::string body_;
  v1::SnapshotRecord record_;
};

}  // namespace ballast
