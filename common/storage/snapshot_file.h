// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "common/storage/file_system.h"
#include "common/storage/record_log.h"

namespace ballast {

// Newest format of the snapshots and manifests that this program reads.
inline constexpr uint32_t kStorageFormat = 4;

// The format to write: the oldest that has what the file needs, because earlier releases read it.
inline constexpr uint32_t FormatToWrite(bool tables, bool increment) { return increment ? 4 : tables ? 3 : 2; }

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

// Rows of a table in a snapshot.
struct SnapshotRows {
  internal::v1::RowsState about;
  std::vector<uint64_t> hashes;
  // about.row_bytes() each.
  std::string images;
  // For each range that ends, what is known of uses; none if they are not counted.
  std::vector<std::string> uses;
  // Rows to remove before; only in an increment.
  std::vector<uint64_t> removed;
};

// A table of a snapshot, without its rows, and the gradients that it buffers.
struct SnapshotTable {
  struct Held {
    internal::v1::HeldRows about;
    std::vector<uint64_t> hashes;
    // The elements of each row, in the order of the hashes.
    std::vector<float> gradients;
    // Uses of each; empty: 1.
    std::vector<uint16_t> uses;
  };
  internal::v1::TableState state;
  std::vector<Held> held;
};

// A part of a snapshot between its header and its end.
using SnapshotPart = std::variant<SnapshotSlice, SnapshotTable, SnapshotRows>;

// Returns the framed message of a slice's record, with the numbers of elements and of arrays set; the arrays have
// equal lengths and are written after it. Records of `slice.held_gradients` gradients follow.
std::string FrameSlice(internal::v1::SliceState slice, absl::Span<const absl::Span<const float>> arrays);

// Returns the framed message of a held gradient's record, with the number of elements set; they are written after it.
std::string FrameGradient(internal::v1::HeldGradient gradient, absl::Span<const float> values);

// Returns the framed message of a table's record. Records of `table.held_rows` buffered gradients and of its rows
// follow.
std::string FrameTable(internal::v1::TableState table);

// Returns the framed message of buffered gradients of rows; hashes and gradients are written after it.
std::string FrameHeldRows(internal::v1::HeldRows held);

// Returns the framed message of a record of rows; the hashes of removed rows, and the hashes and images of others, are
// written after it.
std::string FrameRows(internal::v1::RowsState rows);

// Parses a snapshot's records in order, from any source: a header, slices each followed by its gradients, tables each
// followed by its gradients and rows, an end.
// DATA_LOSS for a record out of order, FAILED_PRECONDITION for a newer format. Thread safety: none.
class SnapshotParser {
 public:
  // kUnfinished: a slice or table whose gradients have not all arrived.
  enum class Kind { kHeader, kUnfinished, kPart, kEnd };

  // Moves out of `record`; `behind` are the bytes after its message.
  absl::StatusOr<Kind> Take(internal::v1::SnapshotRecord& record, absl::string_view behind);

  // Valid once a record of that kind was taken; TakePart returns the last part.
  const internal::v1::SnapshotHeader& header() const { return header_; }
  SnapshotPart TakePart() { return std::move(part_); }

 private:
  absl::StatusOr<Kind> TakeSliceRecord(internal::v1::SliceState state, absl::string_view behind);
  absl::StatusOr<Kind> TakeGradient(internal::v1::HeldGradient about, absl::string_view behind);
  Kind EndSlice();
  absl::StatusOr<Kind> TakeTable(internal::v1::TableState state);
  absl::StatusOr<Kind> TakeHeldRows(internal::v1::HeldRows about, absl::string_view behind);
  absl::StatusOr<Kind> TakeRows(internal::v1::RowsState about, absl::string_view behind);

  uint64_t read_ = 0;
  internal::v1::SnapshotHeader header_;
  // The last slice or table, and the number of its gradients that have not arrived yet.
  SnapshotSlice slice_;
  SnapshotTable table_;
  uint64_t wanted_ = 0;
  // The last table.
  std::optional<uint32_t> table_id_;
  SnapshotPart part_;
};

// Writes a shard's snapshot: a header, its slices and tables, an end. Without the end the file is invalid. Thread
// safety: none.
class SnapshotWriter {
 public:
  // Sets the header's format. ALREADY_EXISTS if the file exists.
  static absl::StatusOr<std::unique_ptr<SnapshotWriter>> Create(FileSystem* files, const std::string& path,
                                                                internal::v1::SnapshotHeader header);

  // Adds a record: its framed message and the arrays, or bytes, after it.
  absl::Status Add(absl::string_view frame, absl::Span<const absl::Span<const float>> behind);
  absl::Status Add(absl::string_view frame, absl::Span<const absl::string_view> behind);

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
  // FAILED_PRECONDITION for a newer format.
  static absl::StatusOr<std::unique_ptr<SnapshotReader>> Open(const std::string& path);

  const internal::v1::SnapshotHeader& header() const { return parser_.header(); }

  // Returns the next part; nullopt once the end was read and nothing follows it.
  absl::StatusOr<std::optional<SnapshotPart>> Next();

 private:
  SnapshotReader(std::unique_ptr<RecordReader> records, std::string path)
      : records_(std::move(records)), path_(std::move(path)) {}
  absl::StatusOr<SnapshotParser::Kind> ReadRecord();

  std::unique_ptr<RecordReader> records_;
  const std::string path_;
  SnapshotParser parser_;
};

}  // namespace ballast
