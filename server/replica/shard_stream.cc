// SPDX-License-Identifier: Apache-2.0
#include "server/replica/shard_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/storage/framed_message.h"
#include "common/storage/snapshot_file.h"
#include "server/durability/shard_snapshot.h"

namespace ballast {
namespace {

constexpr size_t kMaxPartBytes = size_t{1} << 20;

std::string JoinSlice(const ShardCapture::SliceCapture& slice) {
  v1::SnapshotRecord record;
  *record.mutable_slice() = MakeState(slice);
  record.mutable_slice()->set_arrays(slice.weights.arrays.size());
  record.mutable_slice()->set_elements(slice.weights.arrays.empty() ? 0 : slice.weights.arrays[0].size());
  std::string bytes = FrameMessage(record);
  for (const ValueBuffer& array : slice.weights.arrays) {
    const absl::Span<const float> values = array.values();
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  return bytes;
}

absl::StatusOr<ShardCapture::SliceCapture> ParseSlice(const v1::SliceState& state, absl::string_view arrays) {
  const size_t array_bytes = state.elements() * sizeof(float);
  if (state.arrays() == 0 || array_bytes == 0 || arrays.size() / array_bytes != state.arrays() ||
      arrays.size() % array_bytes != 0) {
    return absl::DataLossError(absl::StrCat("slice: got ", arrays.size(), " bytes of values, want ", state.arrays(),
                                            " arrays of ", state.elements(), " elements"));
  }
  ShardCapture::SliceCapture slice;
  slice.key = {state.tensor_id(), state.slice_index()};
  slice.weights.version = state.version();
  slice.weights.applied = state.applied();
  slice.policy = state.policy();
  for (uint32_t i = 0; i < state.arrays(); ++i) {
    ValueBuffer& buffer = slice.weights.arrays.emplace_back(state.elements());
    std::memcpy(buffer.mutable_values().data(), arrays.data() + i * array_bytes, array_bytes);
  }
  return slice;
}

}  // namespace

std::string JoinChange(const v1::ShardRecord& record, absl::Span<const absl::string_view> behind) {
  std::string bytes = FrameMessage(record);
  size_t size = bytes.size();
  for (absl::string_view piece : behind) size += piece.size();
  bytes.reserve(size);
  for (absl::string_view piece : behind) bytes.append(piece.data(), piece.size());
  return bytes;
}

bool SendRecord(v1::ReplicateRequest::Kind kind, uint64_t position, absl::string_view record, SendPart send) {
  while (true) {
    v1::ReplicateRequest part;
    const absl::string_view data = record.substr(0, kMaxPartBytes);
    record.remove_prefix(data.size());
    part.set_data(data.data(), data.size());
    if (record.empty()) {
      part.set_kind(kind);
      part.set_position(position);
    }
    if (!send(part)) return false;
    if (record.empty()) return true;
  }
}

bool SendSnapshot(uint32_t shard, uint64_t position, const ShardCapture& capture, SendPart send) {
  v1::SnapshotRecord header;
  *header.mutable_header() = MakeHeader({.shard = shard, .position = position}, capture);
  header.mutable_header()->set_format(kStorageFormat);
  const auto send_record = [&](absl::string_view record) {
    return SendRecord(v1::ReplicateRequest::KIND_SNAPSHOT, position, record, send);
  };
  if (!send_record(FrameMessage(header))) return false;
  for (const ShardCapture::SliceCapture& slice : capture.slices) {
    if (!send_record(JoinSlice(slice))) return false;
  }
  v1::SnapshotRecord end;
  end.mutable_end()->set_records(capture.slices.size() + 1);
  return send_record(FrameMessage(end));
}

absl::StatusOr<bool> SnapshotAssembler::Add(absl::string_view bytes) {
  v1::SnapshotRecord record;
  const absl::StatusOr<absl::string_view> behind = ParseFramed(bytes, record);
  if (!behind.ok()) return behind.status();
  const bool first = records_ == 0;
  if (record.has_header() != first) return absl::DataLossError("snapshot: got no header first, or another one");
  ++records_;
  if (record.has_header()) {
    if (record.header().format() > kStorageFormat) {
      return absl::FailedPreconditionError(absl::StrCat("snapshot: got format ", record.header().format(),
                                                        " of a newer Ballast, want at most ", kStorageFormat));
    }
    if (record.header().shard() != shard_) {
      return absl::FailedPreconditionError(
          absl::StrCat("snapshot: got shard ", record.header().shard(), ", want shard ", shard_));
    }
    capture_ = ToCapture(record.header());
    return false;
  }
  if (record.has_slice()) {
    absl::StatusOr<ShardCapture::SliceCapture> slice = ParseSlice(record.slice(), *behind);
    if (!slice.ok()) return slice.status();
    capture_.slices.push_back(*std::move(slice));
    return false;
  }
  if (record.end().records() == records_ - 1) return true;
  return absl::DataLossError(
      absl::StrCat("snapshot: got ", records_ - 1, " records before its end, want ", record.end().records()));
}

}  // namespace ballast
