// SPDX-License-Identifier: Apache-2.0
#include "server/replication/shard_stream.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/storage/framed_message.h"
#include "common/storage/snapshot_file.h"
#include "server/durability/shard_replay.h"
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

std::string Join(absl::string_view frame, absl::Span<const absl::string_view> behind) {
  size_t size = frame.size();
  for (absl::string_view piece : behind) size += piece.size();
  std::string bytes;
  bytes.reserve(size);
  bytes.append(frame.data(), frame.size());
  for (absl::string_view piece : behind) bytes.append(piece.data(), piece.size());
  return bytes;
}

// Sends each record of a snapshot that it is passed.
auto SendingTo(uint64_t position, SendPart send) {
  return [position, send](absl::string_view frame, absl::Span<const absl::string_view> behind) {
    const bool sent = SendRecord(internal::v1::ReplicateRequest::KIND_SNAPSHOT, position, Join(frame, behind), send);
    return sent ? absl::OkStatus() : absl::CancelledError("not sent");
  };
}

}  // namespace

std::string JoinChange(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind) {
  return Join(FrameMessage(record), behind);
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
  record.mutable_header()->set_format(FormatToWrite(!outline.tables.empty(), /*increment=*/false));
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

bool SendTable(uint64_t position, const ShardState::TableEntry& table, SendPart send) {
  return VisitTableState(table, SendingTo(position, send)).ok();
}

bool SendRows(uint64_t position, const ShardState::TableEntry& table, const RowsPiece& piece, SendPart send) {
  return VisitRows(table, piece, SendingTo(position, send)).ok();
}

bool SendEnd(uint64_t position, const internal::v1::TransferEnd& end, SendPart send) {
  return SendRecord(internal::v1::ReplicateRequest::KIND_END, position, FrameMessage(end), send);
}

absl::Status ShardLoader::Take(internal::v1::ReplicateRequest::Kind kind, uint64_t position, absl::string_view record) {
  switch (kind) {
    case internal::v1::ReplicateRequest::KIND_SNAPSHOT:
      return TakeSnapshot(position, record);
    case internal::v1::ReplicateRequest::KIND_CHANGE:
      return TakeChange(position, record);
    case internal::v1::ReplicateRequest::KIND_END:
      return TakeEnd(position, record);
    default:
      return absl::DataLossError(absl::StrCat("got a record of kind ", kind, ", want a snapshot, a change or an end"));
  }
}

absl::Status ShardLoader::TakeSnapshot(uint64_t position, absl::string_view bytes) {
  if (whole_) return absl::DataLossError("snapshot: got a record after the end of the transfer");
  internal::v1::SnapshotRecord record;
  const absl::StatusOr<absl::string_view> behind = ParseFramed(bytes, record);
  if (!behind.ok()) return Annotate(behind.status(), "snapshot");
  const absl::StatusOr<SnapshotParser::Kind> kind = parser_.Take(record, *behind);
  if (!kind.ok()) return Annotate(kind.status(), "snapshot");
  if (*kind == SnapshotParser::Kind::kUnfinished) return absl::OkStatus();
  if (*kind == SnapshotParser::Kind::kPart) {
    absl::Status added = AddPart(parser_.TakePart(), position, *builder_);
    return added.ok() ? added : absl::DataLossError(absl::StrCat("snapshot: ", added.message()));
  }
  if (*kind != SnapshotParser::Kind::kHeader) return absl::DataLossError("snapshot: got the end of a file");
  if (parser_.header().shard() != rank_) {
    return WithReason(v1::ERROR_REASON_NOT_OWNER,
                      absl::FailedPreconditionError(
                          absl::StrCat("snapshot: got shard ", parser_.header().shard(), ", want shard ", rank_)));
  }
  if (parser_.header().has_parent()) return absl::DataLossError("snapshot: got an increment, want a whole snapshot");
  ShardState outline = ToCapture(parser_.header());
  absl::StatusOr<ShardBuilder> builder =
      shard_->BeginRestore(std::move(outline.job), std::move(outline.tensors), outline.tables);
  if (!builder.ok()) return Annotate(builder.status(), "snapshot");
  builder_.emplace(*std::move(builder));
  position_ = position;
  return absl::OkStatus();
}

absl::Status ShardLoader::TakeChange(uint64_t position, absl::string_view bytes) {
  if (!whole_ && !builder_.has_value()) return absl::DataLossError("got a change before the snapshot's header");
  if (position != position_ + 1) {
    return absl::DataLossError(absl::StrCat("got change ", position, ", want ", position_ + 1));
  }
  internal::v1::ShardRecord change;
  const absl::StatusOr<absl::string_view> behind = ParseFramed(bytes, change);
  if (!behind.ok()) return behind.status();
  absl::StatusOr<bool> made = true;
  if (whole_) {
    made = ApplyChange(*shard_, change, *behind);
  } else if (absl::Status status = ApplyChange(*builder_, position, change, *behind); !status.ok()) {
    made = status;
  }
  if (!made.ok()) return absl::DataLossError(absl::StrCat("change ", position, ": ", made.status().message()));
  // The server applied the change, so this shard is no longer equal to the server's.
  if (!*made) {
    return absl::DataLossError(
        absl::StrCat("change ", position, " has an old incarnation or a forgotten sequence number"));
  }
  position_ = position;
  return absl::OkStatus();
}

absl::Status ShardLoader::TakeEnd(uint64_t position, absl::string_view bytes) {
  internal::v1::TransferEnd end;
  const absl::StatusOr<absl::string_view> behind = ParseFramed(bytes, end);
  if (!behind.ok()) return behind.status();
  if (!builder_.has_value() || position != position_ || end.slices() != builder_->slices()) {
    return absl::DataLossError(absl::StrCat(
        "got the end of a transfer of ", end.slices(), " slices at change ", position, ", want it once, after ",
        builder_.has_value() ? builder_->slices() : 0, " slices at change ", position_));
  }
  absl::StatusOr<BuiltShard> built = std::move(*builder_).Finish({end.windows().begin(), end.windows().end()});
  builder_.reset();
  if (!built.ok()) return absl::DataLossError(built.status().message());
  if (absl::Status status = shard_->Adopt(*std::move(built)); !status.ok()) return status;
  whole_ = true;
  return absl::OkStatus();
}

}  // namespace ballast
