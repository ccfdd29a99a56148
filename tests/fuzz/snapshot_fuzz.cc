// SPDX-License-Identifier: Apache-2.0
// A shard's snapshots: a choice, then the file itself or its records' bodies. Refused, or slices whose values fit.
#include "common/storage/framed_message.h"
#include "common/storage/snapshot_file.h"
#include "tests/fuzz/fuzz_files.h"

namespace ballast {
namespace {

internal::v1::SnapshotHeader Header() {
  internal::v1::SnapshotHeader header;
  header.set_shards(1);
  header.set_position(9);
  internal::v1::LoggedDeclaration& declaration = *header.mutable_declaration();
  declaration.set_job("job");
  declaration.set_workers(2);
  declaration.mutable_policy()->mutable_async();
  v1::TensorSpec& spec = *declaration.add_tensors()->mutable_spec();
  spec.set_name("w");
  spec.add_shape(3);
  spec.mutable_optimizer()->mutable_momentum()->set_learning_rate(1);
  header.add_windows()->add_answers()->set_sequence(5);
  header.mutable_parent()->set_checkpoint(8);
  return header;
}

// The hash of a removed row, then hashes and images of two rows of 16 bytes.
constexpr char kRows[56] = {3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 64};

// The bodies of a valid file, as the writer makes them.
std::string Bodies() {
  internal::v1::SnapshotRecord header, slice, end;
  *header.mutable_header() = Header();
  header.mutable_header()->set_format(kStorageFormat);
  slice.mutable_slice()->set_elements(3);
  slice.mutable_slice()->set_arrays(2);
  slice.mutable_slice()->mutable_policy()->add_arrived(true);
  slice.mutable_slice()->set_held_gradients(1);
  const std::vector<float> held(3);
  internal::v1::HeldGradient about;
  about.set_worker(1);
  internal::v1::TableState table;
  table.set_table_id(7);
  internal::v1::RowsState rows;
  rows.set_table_id(7);
  rows.set_rows(2);
  rows.set_removed(1);
  rows.set_row_bytes(16);
  end.mutable_end()->set_records(5);
  return AsInput(FrameMessage(header)) + AsInput(FrameMessage(slice) + std::string(24, '\x3f')) +
         AsInput(FrameGradient(about, held) + std::string(12, '\x3f')) + AsInput(FrameTable(table)) +
         AsInput(FrameRows(rows) + std::string(kRows, sizeof(kRows))) + AsInput(FrameMessage(end));
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  StringFileSystem files;
  auto writer = SnapshotWriter::Create(&files, "snapshot", Header());
  Require(writer.ok(), "a snapshot can be written to a string");
  const std::vector<float> values = {1, 2, 3};
  internal::v1::SliceState slice;
  slice.set_version(4);
  const std::vector<absl::Span<const float>> arrays = {values, values};
  slice.set_held_gradients(1);
  Require((*writer)->Add(FrameSlice(slice, arrays), arrays).ok(), "a snapshot accepts a slice");
  Require((*writer)->Add(FrameGradient({}, values), {arrays[0]}).ok(), "a snapshot accepts a gradient");
  internal::v1::TableState table;
  table.set_table_id(7);
  internal::v1::RowsState rows;
  rows.set_table_id(7);
  rows.set_ranges(64);
  rows.set_rows(2);
  rows.set_removed(1);
  rows.set_row_bytes(16);
  Require((*writer)->Add(FrameTable(table), absl::Span<const absl::string_view>()).ok(), "a snapshot accepts a table");
  Require((*writer)->Add(FrameRows(rows), {absl::string_view(kRows, sizeof(kRows))}).ok(), "a snapshot accepts rows");
  Require((*writer)->Finish().ok(), "a snapshot can be finished");
  return {std::string(1, '\0') + files.content(), std::string(1, '\1') + Bodies()};
}

void FuzzOne(FuzzInput input) {
  static InputFile file(".snapshot");
  const std::string content =
      input.Byte() % 2 == 0 ? std::string(input.Rest().data(), input.Rest().size()) : RecordsOf(input, 1);
  file.Put(content);
  const auto reader = SnapshotReader::Open(file.path());
  if (!reader.ok()) return;
  size_t bytes = 0;
  while (true) {
    const auto part = (*reader)->Next();
    if (!part.ok() || !part->has_value()) return;
    if (const auto* rows = std::get_if<SnapshotRows>(&**part)) {
      Require(rows->hashes.size() == rows->about.rows(), "rows have their hashes");
      Require(rows->images.size() == rows->about.rows() * rows->about.row_bytes(), "rows have their images");
      Require(rows->removed.size() == rows->about.removed(), "removed rows have their hashes");
      Require(rows->removed.empty() || (*reader)->header().has_parent(), "an increment alone removes rows");
      bytes += rows->images.size() + sizeof(uint64_t) * rows->removed.size();
    }
    if (const auto* slice = std::get_if<SnapshotSlice>(&**part)) {
      Require(slice->arrays.size() == slice->state.arrays(), "a slice has its arrays");
      for (const std::vector<float>& values : slice->arrays) {
        Require(values.size() == slice->state.elements(), "an array has its elements");
        bytes += sizeof(float) * values.size();
      }
    }
    Require(bytes <= content.size(), "values and rows take at most the size of the file");
  }
}

}  // namespace ballast
