// SPDX-License-Identifier: Apache-2.0
#include "server/replication/shard_stream.h"

#include <vector>

#include "common/storage/framed_message.h"
#include "common/storage/snapshot_file.h"
#include "server/durability/shard_snapshot.h"

namespace ballast {
namespace {

// Small enough that a slow link shows progress.
constexpr size_t kMaxPartBytes = size_t{256} << 10;

std::string Join(absl::string_view frame, absl::Span<const absl::Span<const float>> behind) {
  std::string bytes(frame);
  for (absl::Span<const float> array : behind) {
    bytes.append(reinterpret_cast<const char*>(array.data()), array.size() * sizeof(float));
  }
  return bytes;
}

}  // namespace

std::string JoinChange(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind) {
  std::string bytes = FrameMessage(record);
  size_t size = bytes.size();
  for (absl::string_view piece : behind) size += piece.size();
  bytes.reserve(size);
  for (absl::string_view piece : behind) bytes.append(piece.data(), piece.size());
  return bytes;
}

std::string JoinPushOf(const std::vector<bool>& keep, const internal::v1::ShardRecord& record,
                       absl::Span<const absl::string_view> behind) {
  internal::v1::ShardRecord kept = record;
  kept.mutable_push()->clear_gradients();
  std::vector<absl::string_view> pieces;
  size_t piece = 0, offset = 0;
  for (int i = 0; i < record.push().gradients_size(); ++i) {
    const internal::v1::LoggedPush::Gradient& gradient = record.push().gradients(i);
    if (keep[i]) *kept.mutable_push()->add_gradients() = gradient;
    // A piece may end anywhere, even within a gradient.
    for (size_t left = gradient.bytes(); left > 0 && piece < behind.size();) {
      const absl::string_view part = behind[piece].substr(offset, left);
      if (keep[i] && !part.empty()) pieces.push_back(part);
      left -= part.size();
      offset += part.size();
      if (offset < behind[piece].size()) continue;
      ++piece;
      offset = 0;
    }
  }
  return JoinChange(kept, pieces);
}

bool SendRecord(internal::v1::ReplicateRequest::Kind kind, uint64_t position, absl::string_view record, SendPart send) {
  while (true) {
    internal::v1::ReplicateRequest part;
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

bool SendOutline(uint32_t shard, uint64_t position, const ShardState& outline, SendPart send) {
  internal::v1::SnapshotRecord record;
  *record.mutable_header() = MakeHeader({.shard = shard, .position = position}, outline);
  record.mutable_header()->set_format(kStorageFormat);
  // The windows are sent with the end of the transfer.
  record.mutable_header()->clear_windows();
  return SendRecord(internal::v1::ReplicateRequest::KIND_SNAPSHOT, position, FrameMessage(record), send);
}

bool SendSlice(uint64_t position, const ShardState::SliceEntry& slice, SendPart send) {
  const auto send_record = [&](absl::string_view frame, absl::Span<const absl::Span<const float>> behind) {
    const std::string record = Join(frame, behind);
    const bool sent = SendRecord(internal::v1::ReplicateRequest::KIND_SNAPSHOT, position, record, send);
    return sent ? absl::OkStatus() : absl::CancelledError("not sent");
  };
  return VisitSlice(slice, send_record).ok();
}

bool SendEnd(uint64_t position, const internal::v1::TransferEnd& end, SendPart send) {
  return SendRecord(internal::v1::ReplicateRequest::KIND_END, position, FrameMessage(end), send);
}

}  // namespace ballast
