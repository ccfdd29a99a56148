// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_snapshot.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "server/durability/shard_record.h"

namespace ballast {

internal::v1::SnapshotHeader MakeHeader(const SnapshotPlace& place, const ShardCapture& capture) {
  internal::v1::SnapshotHeader header;
  header.set_shard(place.shard);
  header.set_shards(place.shards);
  header.set_position(place.position);
  *header.mutable_declaration() = EncodeDeclaration(capture.job, capture.tensors);
  header.mutable_windows()->Add(capture.windows.begin(), capture.windows.end());
  return header;
}

internal::v1::SliceState MakeState(const ShardCapture::SliceCapture& slice) {
  internal::v1::SliceState state;
  state.set_tensor_id(slice.key.tensor_id);
  state.set_slice_index(slice.key.slice_index);
  state.set_version(slice.weights.version);
  state.set_applied(slice.weights.applied);
  *state.mutable_policy() = slice.policy;
  return state;
}

absl::Status WriteSnapshot(FileSystem* files, const std::string& path, const SnapshotPlace& place,
                           const ShardCapture& capture) {
  absl::StatusOr<std::unique_ptr<SnapshotWriter>> writer =
      SnapshotWriter::Create(files, path, MakeHeader(place, capture));
  if (!writer.ok()) return writer.status();
  for (const ShardCapture::SliceCapture& slice : capture.slices) {
    std::vector<absl::Span<const float>> arrays;
    for (const ValueBuffer& array : slice.weights.arrays) arrays.push_back(array.values());
    if (absl::Status status = (*writer)->Add(MakeState(slice), arrays); !status.ok()) return status;
  }
  return (*writer)->Finish();
}

ShardCapture ToCapture(const internal::v1::SnapshotHeader& header) {
  ShardCapture capture;
  capture.job = DecodeTerms(header.declaration());
  capture.tensors = DecodeTensors(header.declaration());
  capture.windows.assign(header.windows().begin(), header.windows().end());
  return capture;
}

ShardCapture::SliceCapture ToSliceCapture(const SnapshotReader::SliceRecord& record) {
  const internal::v1::SliceState& state = record.state;
  ShardCapture::SliceCapture to;
  to.key = {state.tensor_id(), state.slice_index()};
  to.weights.version = state.version();
  to.weights.applied = state.applied();
  to.policy = state.policy();
  for (const std::vector<float>& array : record.arrays) {
    ValueBuffer& buffer = to.weights.arrays.emplace_back(array.size());
    std::copy(array.begin(), array.end(), buffer.mutable_values().begin());
  }
  return to;
}

}  // namespace ballast
