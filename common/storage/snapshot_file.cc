// SPDX-License-Identifier: Apache-2.0
#include "common/storage/snapshot_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/storage/framed_message.h"

namespace ballast {

std::string FrameSlice(internal::v1::SliceState slice, absl::Span<const absl::Span<const float>> arrays) {
  slice.set_elements(arrays.empty() ? 0 : arrays[0].size());
  slice.set_arrays(arrays.size());
  internal::v1::SnapshotRecord record;
  *record.mutable_slice() = std::move(slice);
  return FrameMessage(record);
}

std::string FrameGradient(internal::v1::HeldGradient gradient, absl::Span<const float> values) {
  gradient.set_elements(values.size());
  internal::v1::SnapshotRecord record;
  *record.mutable_gradient() = std::move(gradient);
  return FrameMessage(record);
}

std::string FrameTable(internal::v1::TableState table) {
  internal::v1::SnapshotRecord record;
  *record.mutable_table() = std::move(table);
  return FrameMessage(record);
}

std::string FrameHeldRows(internal::v1::HeldRows held) {
  internal::v1::SnapshotRecord record;
  *record.mutable_held_rows() = std::move(held);
  return FrameMessage(record);
}

std::string FrameRows(internal::v1::RowsState rows) {
  internal::v1::SnapshotRecord record;
  *record.mutable_rows() = std::move(rows);
  return FrameMessage(record);
}

absl::StatusOr<SnapshotParser::Kind> SnapshotParser::Take(internal::v1::SnapshotRecord& record,
                                                          absl::string_view behind) {
  ++read_;
  if (read_ == 1) {
    if (!record.has_header()) return absl::DataLossError("not a snapshot of a shard");
    header_ = std::move(*record.mutable_header());
    if (header_.format() <= kStorageFormat) return Kind::kHeader;
    return WithReason(
        v1::ERROR_REASON_STORAGE_FAILED,
        absl::FailedPreconditionError(absl::StrCat("got format ", header_.format(),
                                                   ", written by a newer Ballast, want at most ", kStorageFormat)));
  }
  if (record.has_gradient()) return TakeGradient(std::move(*record.mutable_gradient()), behind);
  if (record.has_held_rows()) return TakeHeldRows(std::move(*record.mutable_held_rows()), behind);
  if (wanted_ > 0) {
    return absl::DataLossError(
        absl::StrCat("record ", read_, " is not a gradient, but ", wanted_, " gradients are missing"));
  }
  if (record.has_end()) {
    if (record.end().records() == read_ - 1) return Kind::kEnd;
    return absl::DataLossError(absl::StrCat("got ", read_ - 1, " records, want ", record.end().records()));
  }
  if (record.has_rows()) return TakeRows(std::move(*record.mutable_rows()), behind);
  if (record.has_table()) return TakeTable(std::move(*record.mutable_table()));
  if (record.has_slice()) return TakeSliceRecord(std::move(*record.mutable_slice()), behind);
  return absl::DataLossError(absl::StrCat("record ", read_, " is not a slice, a table or rows"));
}

absl::StatusOr<SnapshotParser::Kind> SnapshotParser::TakeSliceRecord(internal::v1::SliceState state,
                                                                     absl::string_view behind) {
  slice_ = {std::move(state), {}, {}};
  table_id_.reset();
  const uint64_t elements = slice_.state.elements(), arrays = slice_.state.arrays();
  // Compared in this order so that the product cannot overflow: both factors are bounded by the bytes present.
  if (elements > behind.size() || arrays > behind.size() || elements * arrays * sizeof(float) != behind.size()) {
    return absl::DataLossError(absl::StrCat("record ", read_, ": got ", behind.size(), " bytes after it, want ", arrays,
                                            " arrays of ", elements, " elements"));
  }
  for (uint64_t i = 0; i < arrays; ++i) {
    std::vector<float>& array = slice_.arrays.emplace_back(elements);
    std::memcpy(array.data(), behind.data() + i * elements * sizeof(float), elements * sizeof(float));
  }
  wanted_ = slice_.state.held_gradients();
  return EndSlice();
}

absl::StatusOr<SnapshotParser::Kind> SnapshotParser::TakeGradient(internal::v1::HeldGradient about,
                                                                  absl::string_view behind) {
  if (wanted_ == 0 || table_id_.has_value()) {
    return absl::DataLossError(absl::StrCat("record ", read_, " is a gradient without a slice"));
  }
  if (about.elements() > behind.size() || about.elements() * sizeof(float) != behind.size()) {
    return absl::DataLossError(absl::StrCat("record ", read_, ": got ", behind.size(), " bytes after it, want ",
                                            about.elements(), " elements"));
  }
  std::vector<float> values(about.elements());
  // memcpy needs valid pointers even for 0 bytes.
  if (!values.empty()) std::memcpy(values.data(), behind.data(), behind.size());
  slice_.gradients.push_back({std::move(about), std::move(values)});
  --wanted_;
  return EndSlice();
}

SnapshotParser::Kind SnapshotParser::EndSlice() {
  if (wanted_ > 0) return Kind::kUnfinished;
  part_ = std::move(slice_);
  return Kind::kPart;
}

absl::StatusOr<SnapshotParser::Kind> SnapshotParser::TakeTable(internal::v1::TableState state) {
  table_id_ = state.table_id();
  wanted_ = state.held_rows();
  table_ = {std::move(state), {}};
  if (wanted_ > 0) return Kind::kUnfinished;
  part_ = std::move(table_);
  return Kind::kPart;
}

absl::StatusOr<SnapshotParser::Kind> SnapshotParser::TakeHeldRows(internal::v1::HeldRows about,
                                                                  absl::string_view behind) {
  if (wanted_ == 0 || !table_id_.has_value()) {
    return absl::DataLossError(absl::StrCat("record ", read_, " is a gradient of rows without a table"));
  }
  const uint64_t rows = about.rows(), bytes = behind.size();
  const uint64_t row_bytes = sizeof(uint64_t) + (about.uses() ? sizeof(uint16_t) : 0);
  const uint64_t gradient_bytes = rows > bytes / row_bytes ? bytes : bytes - rows * row_bytes;
  const bool fits = rows == 0 ? bytes == 0 : gradient_bytes < bytes && gradient_bytes % (rows * sizeof(float)) == 0;
  if (!fits) {
    return absl::DataLossError(absl::StrCat("record ", read_, ": got ", bytes,
                                            " bytes after it, want hashes and gradients of ", rows, " rows"));
  }
  SnapshotTable::Held& held = table_.held.emplace_back();
  held.hashes.resize(rows);
  held.gradients.resize(gradient_bytes / sizeof(float));
  if (rows > 0) {
    std::memcpy(held.hashes.data(), behind.data(), rows * sizeof(uint64_t));
    std::memcpy(held.gradients.data(), behind.data() + rows * sizeof(uint64_t), gradient_bytes);
    if (about.uses()) {
      held.uses.resize(rows);
      std::memcpy(held.uses.data(), behind.data() + bytes - rows * sizeof(uint16_t), rows * sizeof(uint16_t));
    }
  }
  held.about = std::move(about);
  if (--wanted_ > 0) return Kind::kUnfinished;
  part_ = std::move(table_);
  return Kind::kPart;
}

absl::StatusOr<SnapshotParser::Kind> SnapshotParser::TakeRows(internal::v1::RowsState about, absl::string_view behind) {
  if (table_id_ != about.table_id()) {
    return absl::DataLossError(
        absl::StrCat("record ", read_, " has rows of table ", about.table_id(), ", which is not the table before it"));
  }
  SnapshotRows taken;
  if (about.removed() > 0) {
    if (!header_.has_parent()) {
      return absl::DataLossError(absl::StrCat("record ", read_, " removes rows, but the file is no increment"));
    }
    const uint64_t removed = about.removed();
    if (removed > behind.size() / sizeof(uint64_t)) {
      return absl::DataLossError(absl::StrCat("record ", read_, ": got ", behind.size(), " bytes after it, want ",
                                              removed, " hashes of removed rows"));
    }
    taken.removed.resize(removed);
    std::memcpy(taken.removed.data(), behind.data(), removed * sizeof(uint64_t));
    behind.remove_prefix(removed * sizeof(uint64_t));
  }
  const uint64_t rows = about.rows(), row_bytes = about.row_bytes();
  uint64_t uses_bytes = 0;
  for (uint32_t bytes : about.admission_bytes()) uses_bytes += bytes;
  // Compared in this order so that the product cannot overflow: all factors are bounded by the bytes present.
  const uint64_t left = behind.size() - std::min<uint64_t>(uses_bytes, behind.size());
  const bool fits =
      uses_bytes <= behind.size() &&
      (rows == 0 ? left == 0 : rows <= left && row_bytes <= left && rows * (sizeof(uint64_t) + row_bytes) == left);
  if (!fits) {
    return absl::DataLossError(absl::StrCat("record ", read_, ": got ", behind.size(), " bytes after it, want ", rows,
                                            " rows of ", sizeof(uint64_t) + row_bytes, " bytes and ", uses_bytes,
                                            " bytes of uses"));
  }
  if (!about.admission_bytes().empty() && about.admission_bytes_size() != static_cast<int64_t>(about.ranges())) {
    return absl::DataLossError(absl::StrCat("record ", read_, ": got uses of ", about.admission_bytes_size(),
                                            " ranges, want those of ", about.ranges()));
  }
  taken.hashes.resize(rows);
  if (rows > 0) std::memcpy(taken.hashes.data(), behind.data(), rows * sizeof(uint64_t));
  taken.images = std::string(behind.substr(rows * sizeof(uint64_t), rows * row_bytes));
  absl::string_view uses = behind.substr(behind.size() - uses_bytes);
  for (uint32_t bytes : about.admission_bytes()) {
    taken.uses.emplace_back(uses.substr(0, bytes));
    uses.remove_prefix(bytes);
  }
  taken.about = std::move(about);
  part_ = std::move(taken);
  return Kind::kPart;
}

absl::StatusOr<std::unique_ptr<SnapshotWriter>> SnapshotWriter::Create(FileSystem* files, const std::string& path,
                                                                       internal::v1::SnapshotHeader header) {
  absl::StatusOr<std::unique_ptr<RecordWriter>> records = RecordWriter::Create(files, path, 1);
  if (!records.ok()) return records.status();
  internal::v1::SnapshotRecord record;
  header.set_format(FormatToWrite(!header.declaration().tables().empty(), header.has_parent()));
  *record.mutable_header() = std::move(header);
  if (absl::Status status = (*records)->Append({FrameMessage(record)}, 0); !status.ok()) return status;
  return std::unique_ptr<SnapshotWriter>(new SnapshotWriter(*std::move(records)));
}

absl::Status SnapshotWriter::Add(absl::string_view frame, absl::Span<const absl::Span<const float>> behind) {
  std::vector<absl::string_view> parts = {frame};
  for (absl::Span<const float> array : behind) {
    parts.emplace_back(reinterpret_cast<const char*>(array.data()), array.size() * sizeof(float));
  }
  return records_->Append(parts, 0);
}

absl::Status SnapshotWriter::Add(absl::string_view frame, absl::Span<const absl::string_view> behind) {
  std::vector<absl::string_view> parts = {frame};
  parts.insert(parts.end(), behind.begin(), behind.end());
  return records_->Append(parts, 0);
}

absl::Status SnapshotWriter::Finish() {
  internal::v1::SnapshotRecord record;
  record.mutable_end()->set_records(records_->next() - 1);
  if (absl::Status status = records_->Append({FrameMessage(record)}, 0); !status.ok()) return status;
  return records_->Sync();
}

absl::StatusOr<std::unique_ptr<SnapshotReader>> SnapshotReader::Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<RecordReader>> records = RecordReader::Open(path, 1);
  if (!records.ok()) return records.status();
  std::unique_ptr<SnapshotReader> reader(new SnapshotReader(*std::move(records), path));
  if (const auto header = reader->ReadRecord(); !header.ok()) return header.status();
  return reader;
}

absl::StatusOr<SnapshotParser::Kind> SnapshotReader::ReadRecord() {
  const absl::StatusOr<std::optional<RecordReader::Record>> record = records_->Next();
  if (!record.ok()) return record.status();
  if (!record->has_value()) {
    return absl::DataLossError(absl::StrCat(path_, ": ends at offset ", records_->end(), " without an end record"));
  }
  internal::v1::SnapshotRecord message;
  const absl::StatusOr<absl::string_view> behind = ParseFramed((*record)->body, message);
  if (!behind.ok()) {
    return absl::DataLossError(
        absl::StrCat(path_, ": record at offset ", (*record)->offset, ": ", behind.status().message()));
  }
  const absl::StatusOr<SnapshotParser::Kind> kind = parser_.Take(message, *behind);
  if (kind.ok()) return kind;
  return Annotate(kind.status(), absl::StrCat(path_, ": record at offset ", (*record)->offset));
}

absl::StatusOr<std::optional<SnapshotPart>> SnapshotReader::Next() {
  absl::StatusOr<SnapshotParser::Kind> kind = ReadRecord();
  while (kind.ok() && *kind == SnapshotParser::Kind::kUnfinished) kind = ReadRecord();
  if (!kind.ok()) return kind.status();
  if (*kind == SnapshotParser::Kind::kPart) return parser_.TakePart();
  const absl::StatusOr<std::optional<RecordReader::Record>> more = records_->Next();
  if (!more.ok()) return more.status();
  if (!more->has_value() && !records_->torn()) return std::nullopt;
  return absl::DataLossError(absl::StrCat(path_, ": continues after its end at offset ", records_->end()));
}

}  // namespace ballast
