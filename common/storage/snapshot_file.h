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

// The format of snapshots and manifests that this program writes; it reads those before it, too.
inline constexpr uint32_t kStorageFormat = 2;

// A slice of a snapshot, its values, and the gradients that it holds.
struct SnapshotSlice {
  struct Gradient {
    internal::v1::HeldGradient about;
    std::vector<float> values;
  };
  internal::v1::SliceState state;
  std::vector<std::vector<float>> arrays;
  std::vector<Gradient> gradients;
};

// The message of a slice's record: sets the number of elements and of arrays, which are equally long. They come behind
// it. Records of `slice.held_gradients` gradients follow.
std::string FrameSlice(internal::v1::SliceState slice, absl::Span<const absl::Span<const float>> arrays);

// The message of a held gradient's record: sets the number of elements, which come behind it.
std::string FrameGradient(internal::v1::HeldGradient gradient, absl::Span<const float> values);

// Takes a snapshot's records apart, in their order, wherever they come from: a header, slices, each with its gradients,
// an end. What is not the next one is DATA_LOSS, a newer format FAILED_PRECONDITION. Thread safety: none.
class SnapshotParser {
 public:
  // kPart: of a slice whose gradients are yet to come.
  enum class Kind { kHeader, kPart, kSlice, kEnd };

  // Moves out of `record`, behind which `behind` stands.
  absl::StatusOr<Kind> Take(internal::v1::SnapshotRecord& record, absl::string_view behind);

  // Once one of that kind was taken; of slices the last.
  const internal::v1::SnapshotHeader& header() const { return header_; }
  SnapshotSlice TakeSlice() { return std::move(slice_); }

 private:
  absl::StatusOr<Kind> TakeSliceRecord(internal::v1::SliceState state, absl::string_view behind);
  absl::StatusOr<Kind> TakeGradient(internal::v1::HeldGradient about, absl::string_view behind);

  uint64_t read_ = 0;
  // Gradients of the slice that have not come yet.
  uint64_t wanted_ = 0;
  internal::v1::SnapshotHeader header_;
  SnapshotSlice slice_;
};

// Writes a shard's snapshot: a header, its slices, an end. A file without its end is none. Thread safety: none.
class SnapshotWriter {
 public:
  // Sets the header's format. ALREADY_EXISTS where there is such a file.
  static absl::StatusOr<std::unique_ptr<SnapshotWriter>> Create(FileSystem* files, const std::string& path,
                                                                internal::v1::SnapshotHeader header);

  // A slice's record, or that of a gradient: its message, framed, and what comes behind it.
  absl::Status Add(absl::string_view frame, absl::Span<const absl::Span<const float>> behind);

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
  using SliceRecord = SnapshotSlice;

  // FAILED_PRECONDITION for a newer format.
  static absl::StatusOr<std::unique_ptr<SnapshotReader>> Open(const std::string& path);

  const internal::v1::SnapshotHeader& header() const { return parser_.header(); }

  // The next slice; nothing once the end was read and nothing follows it.
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
