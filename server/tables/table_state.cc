// SPDX-License-Identifier: Apache-2.0
// A table's state for checkpoints and standbys, and its restoration. Its calls are in table.cc.
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/status/error_reason.h"
#include "server/tables/table.h"

namespace ballast {

Table::State Table::state() const {
  absl::MutexLock lock(&mutex_);
  State state{clock_, position_, messages_.Save(), std::nullopt, std::nullopt, ticks_.Save(), evicted_, not_admitted_};
  if (steps_.has_value()) state.step = steps_->Save();
  if (clocks_.has_value()) state.clocks = clocks_->Save();
  return state;
}

absl::Status Table::SetState(State state) {
  uint64_t bytes = 0;
  if (state.step.has_value()) {
    for (const BufferedRows& rows : state.step->messages) {
      absl::Status fits = rows_.CheckHashes(rows.hashes);
      if (fits.ok() && rows.gradients.size() != rows.hashes.size() * spec().dim()) {
        fits = absl::InvalidArgumentError(absl::StrCat("got ", rows.gradients.size(), " elements of ",
                                                       rows.hashes.size(), " rows, want ", spec().dim(), " a row"));
      }
      if (fits.ok() && !rows.uses.empty() && rows.uses.size() != rows.hashes.size()) {
        fits = absl::InvalidArgumentError(
            absl::StrCat("got uses of ", rows.uses.size(), " rows, want those of ", rows.hashes.size()));
      }
      if (!fits.ok()) return Annotate(fits, absl::StrCat("table \"", spec().name(), "\": buffered gradients"));
      bytes += rows.gradients.size() * sizeof(float) + rows.hashes.size() * sizeof(uint64_t);
    }
  }
  absl::MutexLock lock(&mutex_);
  clock_ = state.clock;
  position_ = state.position;
  ticks_.Restore(std::move(state.ticks));
  evicted_ = state.evicted;
  not_admitted_ = state.not_admitted;
  if (!steps_.has_value()) {
    if (state.step.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("table \"", spec().name(), "\": got steps, want none"));
    }
    messages_.Restore(state.open_steps);
    if (state.clocks.has_value() != clocks_.has_value()) {
      // A table with clocks that begin together needs no state of them.
      if (clocks_.has_value()) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("table \"", spec().name(), "\": got clocks, want none"));
    }
    return clocks_.has_value() ? clocks_->Restore(*std::move(state.clocks)) : absl::OkStatus();
  }
  if (!state.step.has_value()) state.step.emplace().workers.resize(policy_.workers);
  state.step->gathering = spec().first_step() + clock_;
  return steps_->Restore(*std::move(state.step), memory_->budget().Count(bytes));
}

std::optional<uint64_t> Table::ChangedSince(uint64_t checkpoint) const {
  absl::MutexLock lock(&mutex_);
  if (since_checkpoint_ == nullptr || checkpoint_ != checkpoint) return std::nullopt;
  return since_checkpoint_->Count();
}

std::unique_ptr<TableCapture> Table::BeginCheckpoint(uint64_t checkpoint, bool changes_alone) {
  absl::MutexLock lock(&mutex_);
  checkpoint_ = checkpoint;
  if (changes_alone) return rows_.BeginCapture(*since_checkpoint_);
  since_checkpoint_ = rows_.Follow();
  return rows_.BeginCapture();
}

absl::Status Table::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat("table \"", spec().name(), "\": ", what));
}

absl::Status Table::Restore(absl::Span<const uint64_t> hashes, absl::string_view images) {
  return Restore(hashes, images, /*replace=*/false);
}

absl::Status Table::RestoreChanges(absl::Span<const uint64_t> removed, absl::Span<const uint64_t> hashes,
                                   absl::string_view images) {
  if (absl::Status status = rows_.CheckHashes(removed); !status.ok()) {
    return Damaged(absl::StrCat("removed rows: ", status.message()));
  }
  for (uint64_t hash : removed) rows_.Erase(hash);
  return Restore(hashes, images, /*replace=*/true);
}

absl::Status Table::Restore(absl::Span<const uint64_t> hashes, absl::string_view images, bool replace) {
  if (images.size() != hashes.size() * image_bytes()) {
    return Damaged(absl::StrCat("got ", images.size(), " bytes of ", hashes.size(), " rows, want ", image_bytes(),
                                " bytes a row"));
  }
  if (absl::Status status = rows_.CheckHashes(hashes); !status.ok()) return Damaged(status.message());
  absl::StatusOr<ByteBudget::Reservation> room = MakeRoom(hashes);
  if (!room.ok()) return room.status();
  const size_t restored = rows_.Restore(hashes, images.data(), replace);
  memory_->Count();
  if (restored == hashes.size()) return absl::OkStatus();
  return Damaged(absl::StrCat("has ", hashes.size() - restored, " rows twice"));
}

absl::Status Table::RestoreUses(uint32_t first, uint32_t count, absl::Span<const absl::string_view> uses) {
  const size_t want = spec().admission().min_uses() > 1 ? count : 0;
  if (uses.size() != want) return Damaged(absl::StrCat("got uses of ", uses.size(), " ranges, want those of ", want));
  for (size_t i = 0; i < uses.size(); ++i) {
    if (absl::Status status = rows_.RestoreUses(first + i, uses[i]); !status.ok()) return Damaged(status.message());
  }
  return absl::OkStatus();
}

}  // namespace ballast
