// SPDX-License-Identifier: Apache-2.0
#include "server/shard/table_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {

absl::Status TableBuilder::Declare(absl::Span<const OwnedTable> tables) {
  std::vector<OwnedTable> fresh;
  for (const OwnedTable& table : tables) {
    if (!tables_.contains(table.spec.id())) fresh.push_back(table);
  }
  absl::StatusOr<ShardTables::Addition> made = make_(fresh);
  if (!made.ok()) return made.status();
  for (std::unique_ptr<Table>& table : *made) {
    const uint32_t id = table->spec().id();
    tables_[id].table = std::move(table);
  }
  return absl::OkStatus();
}

absl::StatusOr<TableBuilder::Building*> TableBuilder::Find(uint32_t table) {
  const auto found = tables_.find(table);
  if (found != tables_.end()) return &found->second;
  return absl::InvalidArgumentError(absl::StrCat("table ", table, " is not declared"));
}

absl::Status TableBuilder::AddState(uint32_t table, Table::State state, uint64_t captured_at) {
  const absl::StatusOr<Building*> building = Find(table);
  if (!building.ok()) return building.status();
  if ((*building)->state_at.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("table ", table, ": got its state twice"));
  }
  if (absl::Status status = (*building)->table->SetState(std::move(state)); !status.ok()) return status;
  (*building)->state_at = captured_at;
  return absl::OkStatus();
}

absl::Status TableBuilder::AddRows(uint32_t table, const CapturedRows& rows, uint64_t captured_at) {
  const absl::StatusOr<Building*> found = Find(table);
  if (!found.ok()) return found.status();
  Building& building = **found;
  const v1::RangeSpan& span = building.table->owned().spans[0];
  const uint64_t next = span.first() + building.captured_at.size();
  if (rows.range != next || rows.ranges > span.first() + span.count() - next) {
    return absl::InvalidArgumentError(absl::StrCat("table ", table, ": got ", rows.ranges, " ranges from ", rows.range,
                                                   ", want them from ", next, " to ", span.first() + span.count() - 1));
  }
  if (absl::Status status = building.table->CheckOwned(rows.hashes); !status.ok()) return status;
  if (absl::Status status = building.table->Restore(rows.hashes, rows.images); !status.ok()) return status;
  if (absl::Status status = building.table->RestoreUses(rows.range, rows.ranges, rows.uses); !status.ok())
    return status;
  building.captured_at.insert(building.captured_at.end(), rows.ranges, captured_at);
  return absl::OkStatus();
}

void TableBuilder::Apply(uint64_t position, Table::Turn turn, const RowGradients& gradients, Building& building) {
  const auto lacks = std::lower_bound(building.captured_at.begin(), building.captured_at.end(), position);
  turn.end_range = building.table->owned().spans[0].first() + (lacks - building.captured_at.begin());
  building.table->Apply(gradients, turn);
}

absl::Status TableBuilder::Push(uint64_t position, const PushTicket& push, uint32_t messages_of_step,
                                const RowGradientsView* view, bool accept_non_finite, Building& building) {
  if (!building.state_at.has_value() || *building.state_at >= position) return absl::OkStatus();
  CheckedRows::Part part;
  if (view != nullptr) {
    absl::StatusOr<CheckedRows::Part> checked =
        CheckRows(shard_, push, messages_of_step, building.table.get(), *view, accept_non_finite);
    if (!checked.ok()) return checked.status();
    part = *std::move(checked);
  }
  Table::Turn turn = building.table->TakeTurn(TableMessageOf(push, messages_of_step), part.gradients,
                                              std::move(part.waiting), /*ordered=*/false);
  Apply(position, std::move(turn), part.gradients, building);
  return absl::OkStatus();
}

absl::Status TableBuilder::Push(uint64_t position, const PushTicket& push, uint32_t messages_of_step,
                                absl::Span<const RowGradientsView> gradients, bool accept_non_finite) {
  for (const RowGradientsView& view : gradients) {
    const absl::StatusOr<Building*> building = Find(view.table_id);
    if (!building.ok()) return building.status();
    absl::Status status = Push(position, push, messages_of_step, &view, accept_non_finite, **building);
    if (!status.ok()) return status;
  }
  for (auto& [id, building] : tables_) {
    const auto has = [id = id](const RowGradientsView& view) { return view.table_id == id; };
    if (std::any_of(gradients.begin(), gradients.end(), has)) continue;
    absl::Status status = Push(position, push, messages_of_step, nullptr, accept_non_finite, building);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void TableBuilder::Pause(uint64_t position, uint32_t worker) {
  for (auto& [id, building] : tables_) {
    if (!building.state_at.has_value() || *building.state_at >= position) continue;
    Apply(position, building.table->TakePause(worker), {}, building);
  }
}

absl::StatusOr<ShardTables::Addition> TableBuilder::Finish() && {
  ShardTables::Addition finished;
  for (auto& [id, building] : tables_) {
    const uint64_t ranges = building.table->owned().spans[0].count();
    if (!building.state_at.has_value() || building.captured_at.size() != ranges) {
      return absl::InvalidArgumentError(absl::StrCat("table ", id, ": got ",
                                                     building.state_at.has_value() ? "its" : "no", " state and ",
                                                     building.captured_at.size(), " of its ", ranges, " ranges"));
    }
    finished.push_back(std::move(building.table));
  }
  return finished;
}

}  // namespace ballast
