// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "common/storage/file_system.h"
#include "common/storage/record_log.h"

namespace ballast {

// Format of the snapshots and manifests that this program writes; it also reads older ones.
inline constexpr uint32_t kStorageFormat = 2;

// A slice of a snapshot: its arrays and the gradients that it buffers.
struct SnapshotSlice {
  struct Gradient {
    internal::v1::HeldGradient about;
    std::vector<float> values;
  };
  internal::v1::SliceState state;
  std::vector<std::vector<float>> arrays;
  std::vector<Gradient> gradients;
};

// Returns the framed message of a slice's record, with the numbers of elements and of arrays set; the arrays have
// equal lengths and are written after it. Records of `slice.held_gradients` gradients follow.
std::string FrameSlice(internal::v1::SliceState slice, absl::Span<const absl::Span<const float>> arrays);

// Returns the framed message of a held gradient's record, with the number of elements set; they are written after it.
std::string FrameGradient(internal::v1::HeldGradient gradient, absl::Span<const float> values);

// Parses a snapshot's records in order, from any source: a header, slices each followed by its gradients, an end.
// DATA_LOSS for a record out of order, FAILED_PRECONDITION for a newer format. Thread safety: none.
class SnapshotParser {
 public:
  // kPart: a slice whose gradients have not all arrived.
  enum class Kind { kHeader, kPart, kSlice, kEnd };

  // Moves out of `record`; `behind` are the bytes after its message.
  absl::StatusOr<Kind> Take(internal::v1::SnapshotRecord& record, absl::string_view behind);

  // Valid once a record of that kind was taken; TakeSlice returns the last slice.
  const internal::v1::SnapshotHeader& header() const { return header_; }
  SnapshotSlice TakeSlice() { return std::move(slice_); }

 private:
  absl::StatusOr<Kind> TakeSliceRecord(internal::v1::SliceState state, absl::string_view behind);
  absl::StatusOr<Kind> TakeGradient(internal::v1::HeldGradient about, absl::string_view behind);

  uint64_t read_ = 0;
  // Number of gradients of the slice that have not arrived yet.
  uint64_t wanted_ = 0;
  internal::v1::SnapshotHeader header_;
  SnapshotSlice slice_;
};

// Writes a shard's snapshot: a header, its slices, an end. Without the end the file is invalid. Thread safety: none.
class SnapshotWriter {
 public:
  // Sets the header's format. ALREADY_EXISTS if the file exists.
  static absl::StatusOr<std::unique_ptr<SnapshotWriter>> Create(FileSystem* files, const std::string& path,
                                                                internal::v1::SnapshotHeader header);

  // Adds the record of a slice or gradient: its framed message and the arrays after it.
  absl::Status Add(absl::string_view frame, absl::Span<const absl::Span<const float>> behind);

  // Writes the end and syncs.
  absl::Status Finish();

  uint64_t size() const { return records_->size(); }

 private:
  explicit SnapshotWriter(std::unique_ptr<RecordWriter> records) : records_(std::move(records)) {}

  std::unique_ptr<RecordWriter> records_;
};

// Reads a snapshot; any damaged or missing part is DATA_LOSS with file and offset. Thread safety: none.
class SnapshotReader {
 public:
  using SliceRecord = SnapshotSlice;

  // FAILED_PRECONDITION for a newer format.
  static absl::StatusOr<std::unique_ptr<SnapshotReader>> Open(const std::string& path);

  const internal::v1::SnapshotHeader& header() const { return parser_.header(); }

  // Returns the next slice; nullopt once the end was read and nothing follows it.
  absl::StatusOr<std::optional<SliceRecord>> Next();

 private:
  SnapshotReader(std::unique_ptr<RecordReader> records, std::string path)
      : records_(std::move(records)), path_(std::move(path)) {}
  absl::StatusOr<SnapshotParser::Kind> ReadRecord();

  std::unique_ptr<RecordReader> records_;
  const std::string path_;
  SnapshotParser parser_;
};

}  // namespace ballast
