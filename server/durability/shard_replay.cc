// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_replay.h"

#include <vector>

#include "common/status/error_reason.h"
#include "server/shard/shard_record.h"

namespace ballast {
namespace {

std::vector<GradientView> ViewGradients(const internal::v1::LoggedPush& push, absl::string_view payloads,
                                        std::vector<absl::string_view>& pieces) {
  pieces.reserve(push.gradients_size());
  std::vector<GradientView> views;
  views.reserve(push.gradients_size());
  for (const internal::v1::LoggedPush::Gradient& gradient : push.gradients()) {
    pieces.push_back(payloads.substr(0, gradient.bytes()));
    payloads.remove_prefix(pieces.back().size());
    views.push_back({{gradient.tensor_id(), gradient.slice_index()},
                     gradient.version(),
                     gradient.encoding(),
                     {&pieces.back(), pieces.back().empty() ? size_t{0} : size_t{1}}});
  }
  return views;
}

std::vector<ValueView> ViewValues(const internal::v1::LoggedValues& values, absl::string_view payloads,
                                  std::vector<absl::string_view>& pieces) {
  pieces.reserve(values.slices_size());
  std::vector<ValueView> views;
  views.reserve(values.slices_size());
  for (const internal::v1::LoggedValues::Slice& slice : values.slices()) {
    pieces.push_back(payloads.substr(0, slice.bytes()));
    payloads.remove_prefix(pieces.back().size());
    views.push_back({{slice.tensor_id(), slice.slice_index()}, slice.encoding(), {&pieces.back(), 1}});
  }
  return views;
}

absl::Status ApplyValues(ParameterShard& shard, const internal::v1::LoggedValues& values, absl::string_view payloads) {
  std::vector<absl::string_view> pieces;
  return shard.SetValues(shard.job_name(), ViewValues(values, payloads, pieces)).status();
}

absl::Status ApplyPush(ParameterShard& shard, const internal::v1::LoggedPush& push, absl::string_view payloads) {
  std::vector<absl::string_view> pieces;
  const std::vector<GradientView> gradients = ViewGradients(push, payloads, pieces);
  return shard.Push(shard.job_name(), DecodeTicket(push), gradients).status();
}

std::vector<RowGradientsView> ViewRows(const internal::v1::LoggedRows& rows, absl::string_view payloads,
                                       std::vector<absl::string_view>& pieces) {
  const auto take = [&](uint64_t bytes) {
    const absl::string_view taken = payloads.substr(0, bytes);
    payloads.remove_prefix(taken.size());
    return taken;
  };
  pieces.reserve(rows.tables_size());
  std::vector<RowGradientsView> views;
  for (const internal::v1::LoggedRows::Table& table : rows.tables()) {
    RowGradientsView& view = views.emplace_back();
    view.table_id = table.table_id();
    view.ids = take(table.rows() * sizeof(uint64_t));
    view.unordered = table.unordered();
    view.versions = take(table.versions() ? table.rows() * sizeof(uint32_t) : 0);
    view.uses = take(table.uses() ? table.rows() * sizeof(uint16_t) : 0);
    view.encoding = table.encoding();
    if (table.has_clock()) view.clock = table.clock();
    pieces.push_back(take(table.bytes()));
    view.payload = {&pieces.back(), pieces.back().empty() ? size_t{0} : size_t{1}};
  }
  return views;
}

absl::Status ApplyRows(ParameterShard& shard, const internal::v1::LoggedRows& rows, absl::string_view payloads) {
  std::vector<absl::string_view> pieces;
  const std::vector<RowGradientsView> views = ViewRows(rows, payloads, pieces);
  return shard.PushRows(shard.job_name(), DecodeTicket(rows), rows.messages_of_step(), views).status();
}

absl::Status ApplyCatchUp(ParameterShard& shard, const internal::v1::LoggedCatchUp& logged) {
  std::vector<SeenSlice> seen;
  for (const internal::v1::LoggedCatchUp::Slice& slice : logged.slices()) {
    seen.push_back({{slice.tensor_id(), slice.slice_index()}, slice.version(), slice.finished_steps()});
  }
  const SeenSteps rows{logged.applied_steps(), logged.ended_steps()};
  return shard.CatchUp(shard.job_name(), logged.worker(), logged.incarnation(), seen, rows).status();
}

absl::Status Apply(ParameterShard& shard, const internal::v1::ShardRecord& change, absl::string_view behind) {
  switch (change.kind_case()) {
    case internal::v1::ShardRecord::kDeclaration:
      return shard
          .DeclareFrom(change.declaration().checkpoint(), DecodeJobConfig(change.declaration()),
                       DecodeTensors(change.declaration()), DecodeTables(change.declaration()))
          .status();
    case internal::v1::ShardRecord::kPush:
      return ApplyPush(shard, change.push(), behind);
    case internal::v1::ShardRecord::kRows:
      return ApplyRows(shard, change.rows(), behind);
    case internal::v1::ShardRecord::kValues:
      return ApplyValues(shard, change.values(), behind);
    case internal::v1::ShardRecord::kPause:
      return shard.Pause(shard.job_name(), change.pause().worker(), change.pause().incarnation());
    case internal::v1::ShardRecord::kCatchUp:
      return ApplyCatchUp(shard, change.catch_up());
    default:
      return absl::DataLossError("has an unknown kind");
  }
}

}  // namespace

absl::StatusOr<bool> ApplyChange(ParameterShard& shard, const internal::v1::ShardRecord& change,
                                 absl::string_view behind) {
  const absl::Status status = Apply(shard, change, behind);
  if (status.ok()) return true;
  switch (ReasonOf(status)) {
    case v1::ERROR_REASON_STALE_INCARNATION:
    case v1::ERROR_REASON_SEQUENCE_FORGOTTEN:
      return false;
    default:
      return status;
  }
}

absl::Status ApplyChange(ShardBuilder& shard, uint64_t position, const internal::v1::ShardRecord& change,
                         absl::string_view behind) {
  switch (change.kind_case()) {
    case internal::v1::ShardRecord::kDeclaration:
      return shard.Declare(DecodeTensors(change.declaration()), DecodeTables(change.declaration()));
    case internal::v1::ShardRecord::kPush: {
      std::vector<absl::string_view> pieces;
      return shard.Push(DecodeTicket(change.push()), ViewGradients(change.push(), behind, pieces));
    }
    case internal::v1::ShardRecord::kRows: {
      std::vector<absl::string_view> pieces;
      const std::vector<RowGradientsView> views = ViewRows(change.rows(), behind, pieces);
      return shard.PushRows(position, DecodeTicket(change.rows()), change.rows().messages_of_step(), views);
    }
    case internal::v1::ShardRecord::kValues: {
      std::vector<absl::string_view> pieces;
      return shard.SetValues(position, ViewValues(change.values(), behind, pieces));
    }
    case internal::v1::ShardRecord::kPause:
      return shard.Pause(position, change.pause().worker());
    default:
      return absl::DataLossError("has an unknown kind");
  }
}

}  // namespace ballast
