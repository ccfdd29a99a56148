// SPDX-License-Identifier: Apache-2.0
#include "server/replica/shard_stream.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/error_reason.h"
#include "common/storage/framed_message.h"
#include "server/durability/shard_snapshot.h"

namespace ballast {
namespace {

constexpr size_t kMaxPartBytes = size_t{1} << 20;

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

bool SendSnapshot(uint32_t shard, uint64_t position, const ShardCapture& capture, SendPart send) {
  internal::v1::SnapshotRecord header;
  *header.mutable_header() = MakeHeader({.shard = shard, .position = position}, capture);
  header.mutable_header()->set_format(kStorageFormat);
  const auto send_record = [&](absl::string_view record) {
    return SendRecord(internal::v1::ReplicateRequest::KIND_SNAPSHOT, position, record, send);
  };
  if (!send_record(FrameMessage(header))) return false;
  uint64_t records = 1;
  for (const ShardCapture::SliceCapture& slice : capture.slices) {
    const absl::Status sent =
        VisitSlice(slice, [&](absl::string_view frame, absl::Span<const absl::Span<const float>> behind) {
          return send_record(Join(frame, behind)) ? absl::OkStatus() : absl::CancelledError("not sent");
        });
    if (!sent.ok()) return false;
    records += CountRecords(slice);
  }
  internal::v1::SnapshotRecord end;
  end.mutable_end()->set_records(records);
  return send_record(FrameMessage(end));
}

absl::StatusOr<bool> SnapshotAssembler::Add(absl::string_view bytes) {
  internal::v1::SnapshotRecord record;
  const absl::StatusOr<absl::string_view> behind = ParseFramed(bytes, record);
  if (!behind.ok()) return behind.status();
  const absl::StatusOr<SnapshotParser::Kind> kind = parser_.Take(record, *behind);
  if (!kind.ok()) return Annotate(kind.status(), "snapshot");
  switch (*kind) {
    case SnapshotParser::Kind::kHeader:
      if (parser_.header().shard() != shard_) {
        return WithReason(v1::ERROR_REASON_NOT_OWNER,
                          absl::FailedPreconditionError(
                              absl::StrCat("snapshot: got shard ", parser_.header().shard(), ", want shard ", shard_)));
      }
      capture_ = ToCapture(parser_.header());
      return false;
    case SnapshotParser::Kind::kPart:
      return false;
    case SnapshotParser::Kind::kSlice:
      capture_.slices.push_back(ToSliceCapture(parser_.TakeSlice()));
      return false;
    case SnapshotParser::Kind::kEnd:
      break;
  }
  return true;
}

}  // namespace ballast
