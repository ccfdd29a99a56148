// SPDX-License-Identifier: Apache-2.0
#include "server/durability/checkpoint_source.h"

#include <algorithm>
#include <map>
#include <set>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_fields.h"
#include "common/job/kind_names.h"
#include "common/job/limits.h"
#include "common/status/error_reason.h"
#include "common/storage/checkpoint_chain.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/snapshot_file.h"
#include "common/tables/row_hash.h"
#include "common/tables/table_spec.h"
#include "common/tensors/shard_map.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/durability/shard_snapshot.h"

namespace ballast {
namespace {

// The number of steps finished by the furthest worker. All workers resume there (ProgressTracker).
uint64_t MostSteps(const internal::v1::PolicyState& saved) {
  uint64_t most = saved.slowest();
  for (const internal::v1::PolicyState::Clock& clock : saved.clocks()) most = std::max(most, clock.finished());
  return most;
}

internal::v1::PolicyState::Clock ClockAt(uint64_t steps) {
  internal::v1::PolicyState::Clock clock;
  clock.set_finished(steps);
  clock.set_clock(steps);
  return clock;
}

// Returns a slice's policy state between two steps, with no gradients, for a job whose workers or policy differ from
// those of the job that saved it.
PolicyState AtRest(const PolicyState& saved, uint64_t version, uint32_t workers) {
  PolicyState state;
  const uint64_t steps = MostSteps(saved.fields);
  state.fields.set_gathering(version);
  state.fields.set_slowest(steps);
  for (uint32_t rank = 0; rank < workers; ++rank) {
    state.fields.add_arrived(false);
    state.fields.add_paused(false);
    *state.fields.add_clocks() = ClockAt(steps);
  }
  return state;
}

// A resumed job waits for all its workers, including those that had paused when the checkpoint was taken.
void IncludeAllWorkers(PolicyState& state) {
  const uint64_t steps = MostSteps(state.fields);
  for (int rank = 0; rank < state.fields.paused_size(); ++rank) state.fields.set_paused(rank, false);
  if (state.fields.clocks_size() > 0) state.fields.set_slowest(steps);
  for (internal::v1::PolicyState::Clock& clock : *state.fields.mutable_clocks()) clock = ClockAt(steps);
}

// Returns the spec without the fields that depend on the job's length, which may differ in a resumed job.
template <typename Spec>
Spec WithoutJobLength(Spec spec) {
  if (!spec.optimizer().schedule().total_from_job()) return spec;
  v1::Schedule& schedule = *spec.mutable_optimizer()->mutable_schedule();
  if (schedule.has_polynomial()) schedule.mutable_polynomial()->clear_total();
  if (schedule.has_cosine()) schedule.mutable_cosine()->clear_total();
  if (schedule.has_one_cycle()) schedule.mutable_one_cycle()->clear_total();
  return spec;
}

// Returns why a tensor or table saved as `saved` cannot resume as `now`; empty if it can. A total that follows from the
// job's length is not compared, so the job may have other epochs, workers or batches. A release without total_from_job
// saved only the total.
template <typename Spec>
std::string WhyNotResumed(absl::string_view kind, Spec saved, Spec now) {
  const bool saved_follows = saved.optimizer().schedule().total_from_job();
  if (saved_follows) saved = WithoutJobLength(std::move(saved));
  if (!saved_follows && now.optimizer().schedule().total_from_job()) {
    now.mutable_optimizer()->mutable_schedule()->clear_total_from_job();
  }
  // A job may state a constant that it left out before.
  FillNumbers(saved);
  FillNumbers(now);
  const std::string difference = FirstDifference(WithoutJobLength(now), saved);
  return difference.empty() ? "" : absl::StrCat(kind, " ", saved.id(), " \"", saved.name(), "\": ", difference);
}

// `kind` is "tensor" or "table".
template <typename Placed, typename Spec>
absl::Status CheckSpecs(absl::string_view kind, const std::string& path, const std::vector<Placed>& saved,
                        const std::vector<Spec>& wanted) {
  for (const Spec& spec : wanted) {
    const auto same =
        std::find_if(saved.begin(), saved.end(), [&](const Placed& one) { return one.spec.id() == spec.id(); });
    const std::string why = same == saved.end() ? absl::StrCat(kind, " \"", spec.name(), "\" is not in the checkpoint")
                                                : WhyNotResumed(kind, same->spec, spec);
    if (why.empty()) continue;
    return WithReason(v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
                      absl::FailedPreconditionError(
                          absl::StrCat("cannot resume from ", path, ", a checkpoint of another model: ", why)));
  }
  return absl::OkStatus();
}

// Takes what a shard needs of a checkpoint's files, in any order of the shards, each with its chain of files in order.
// Thread safety: none.
class Loading {
 public:
  Loading(const std::string& path, const JobConfig& job, absl::Span<const OwnedTensor> tensors,
          absl::Span<const std::unique_ptr<Table>> tables)
      : path_(path), job_(job) {
    for (const OwnedTensor& tensor : tensors) {
      for (const v1::SliceRange& range : tensor.slices) slices_[{tensor.spec.id(), range.index()}] = false;
    }
    for (const std::unique_ptr<Table>& table : tables) tables_[table->spec().id()].table = table.get();
  }

  // Ranks of the shards whose files have something that is needed.
  std::set<uint32_t> Shards(const ShardMap& map) const;

  absl::Status Take(const internal::v1::SnapshotHeader& header, SnapshotPart part, ChainPlace place);

  // DATA_LOSS if something that is needed was in no file.
  absl::StatusOr<std::vector<ShardState::SliceEntry>> Finish();

 private:
  struct Wanted {
    Table* table = nullptr;
    // The furthest of the files' states.
    Table::State state;
    // Number of ranges that were found in whole files, and in files of the checkpoint itself.
    uint64_t whole_ranges = 0, ranges = 0;
  };

  absl::Status CheckMode(const v1::ConsistencyPolicy& saved) const;
  void TakeSlice(const internal::v1::LoggedDeclaration& saved, SnapshotSlice slice);
  void TakeState(const internal::v1::TableState& state);
  absl::Status TakeRows(const SnapshotRows& rows, ChainPlace place);
  absl::Status Damaged(absl::string_view what) const { return absl::DataLossError(absl::StrCat(path_, ": ", what)); }

  const std::string& path_;
  const JobConfig& job_;
  // True for those that were found.
  absl::flat_hash_map<SliceKey, bool> slices_;
  std::vector<ShardState::SliceEntry> found_;
  // By id.
  std::map<uint32_t, Wanted> tables_;
};

std::set<uint32_t> Loading::Shards(const ShardMap& map) const {
  std::set<uint32_t> shards;
  for (const PlacedTensor& tensor : map.tensors()) {
    for (const PlacedSlice& slice : tensor.slices) {
      if (slices_.contains({tensor.spec.id(), slice.index})) shards.insert(slice.shard);
    }
  }
  for (const PlacedTable& placed : map.tables()) {
    const auto wanted = tables_.find(placed.spec.id());
    if (wanted == tables_.end()) continue;
    const v1::RangeSpan& own = wanted->second.table->owned().spans[0];
    for (const RangeSpan& span : placed.spans) {
      const bool apart = span.first >= own.first() + own.count() || own.first() >= span.first + span.count;
      if (!apart) shards.insert(span.shard);
    }
  }
  return shards;
}

absl::Status Loading::CheckMode(const v1::ConsistencyPolicy& saved) const {
  if (saved.kind_case() == job_.policy.kind_case()) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
                    absl::FailedPreconditionError(absl::StrCat(
                        "cannot resume from ", path_, ": the checkpoint's job was in mode ", KindName(saved), ", got ",
                        KindName(job_.policy), ", whose steps are counted differently")));
}

absl::Status Loading::Take(const internal::v1::SnapshotHeader& header, SnapshotPart part, ChainPlace place) {
  if (absl::Status status = CheckMode(header.declaration().policy()); !status.ok()) return status;
  if (const auto* rows = std::get_if<SnapshotRows>(&part)) return TakeRows(*rows, place);
  if (!place.last) return absl::OkStatus();
  if (const auto* table = std::get_if<SnapshotTable>(&part)) TakeState(table->state);
  if (auto* slice = std::get_if<SnapshotSlice>(&part)) TakeSlice(header.declaration(), std::move(*slice));
  return absl::OkStatus();
}

void Loading::TakeSlice(const internal::v1::LoggedDeclaration& saved, SnapshotSlice slice) {
  const auto wanted = slices_.find({slice.state.tensor_id(), slice.state.slice_index()});
  if (wanted == slices_.end() || wanted->second) return;
  wanted->second = true;
  ShardState::SliceEntry& entry = found_.emplace_back(ToSliceEntry(std::move(slice)));
  // The job may be longer now; its first push reports its position again.
  entry.weights.position.reset();
  const bool same_terms = saved.workers() == job_.workers &&
                          google::protobuf::util::MessageDifferencer::Equals(saved.policy(), job_.policy);
  if (same_terms) {
    IncludeAllWorkers(entry.policy);
  } else {
    entry.policy = AtRest(entry.policy, entry.weights.version, job_.workers);
  }
}

void Loading::TakeState(const internal::v1::TableState& state) {
  const auto wanted = tables_.find(state.table_id());
  if (wanted == tables_.end()) return;
  Table::State& furthest = wanted->second.state;
  if (state.clock() >= furthest.clock) {
    furthest.clock = state.clock();
    furthest.ticks.clear();
    for (const internal::v1::TableState::Tick& tick : state.ticks()) {
      furthest.ticks.push_back({tick.unix_seconds(), tick.clock()});
    }
  }
  if (state.clocks().empty()) return;
  // A resumed job waits for all its workers, which resume at the step of the furthest.
  uint64_t steps = std::max(state.slowest(), furthest.clocks.has_value() ? furthest.clocks->slowest : 0);
  for (const internal::v1::PolicyState::Clock& clock : state.clocks()) steps = std::max(steps, clock.finished());
  furthest.clocks = WorkerClocks::Together(job_.workers, steps);
}

absl::Status Loading::TakeRows(const SnapshotRows& rows, ChainPlace place) {
  const auto found = tables_.find(rows.about.table_id());
  if (found == tables_.end()) return absl::OkStatus();
  Wanted& wanted = found->second;
  const v1::RangeSpan& own = wanted.table->owned().spans[0];
  const int range_bits = RangeBits(wanted.table->spec());
  const uint64_t own_end = uint64_t{own.first()} + own.count();
  // Position of the first of the hashes that is in that range or a later one.
  const auto first_in = [&](absl::Span<const uint64_t> hashes, uint64_t range) {
    return std::partition_point(hashes.begin(), hashes.end(),
                                [&](uint64_t hash) { return RangeOf(hash, range_bits) < range; }) -
           hashes.begin();
  };
  const auto owned = [&](absl::Span<const uint64_t> hashes) {
    const size_t first = first_in(hashes, own.first());
    return hashes.subspan(first, first_in(hashes, own_end) - first);
  };
  const uint64_t begin = std::max<uint64_t>(rows.about.range(), own.first());
  const uint64_t end = std::min<uint64_t>(uint64_t{rows.about.range()} + rows.about.ranges(), own_end);
  const uint64_t ranges = end > begin ? end - begin : 0;
  if (place.first) wanted.whole_ranges += ranges;
  if (place.last) wanted.ranges += ranges;
  const size_t row_bytes = rows.about.row_bytes();
  const absl::Span<const uint64_t> hashes = owned(rows.hashes);
  const auto images =
      absl::string_view(rows.images).substr(first_in(rows.hashes, own.first()) * row_bytes, hashes.size() * row_bytes);
  absl::Status restored = place.first ? wanted.table->Restore(hashes, images)
                                      : wanted.table->RestoreChanges(owned(rows.removed), hashes, images);
  for (size_t i = 0; i < rows.uses.size(); ++i) {
    const uint64_t range = uint64_t{rows.about.range()} + i;
    const absl::string_view uses = rows.uses[i];
    if (range >= own.first() && range < own_end) restored.Update(wanted.table->RestoreUses(range, 1, {&uses, 1}));
  }
  return absl::IsDataLoss(restored) ? Damaged(restored.message()) : restored;
}

absl::StatusOr<std::vector<ShardState::SliceEntry>> Loading::Finish() {
  if (found_.size() != slices_.size()) {
    return Damaged(absl::StrCat("got ", found_.size(), " of the ", slices_.size(), " slices that this shard owns"));
  }
  for (const auto& [id, wanted] : tables_) {
    const uint64_t ranges = wanted.table->owned().spans[0].count();
    const uint64_t found = std::min(wanted.whole_ranges, wanted.ranges);
    if (wanted.whole_ranges != ranges || wanted.ranges != ranges) {
      return Damaged(absl::StrCat("got ", found, " of the ", ranges, " ranges of table \"", wanted.table->spec().name(),
                                  "\" that this shard owns"));
    }
    if (absl::Status status = wanted.table->SetState(wanted.state); !status.ok()) return status;
  }
  return std::move(found_);
}

}  // namespace

absl::StatusOr<CheckpointSource> CheckpointSource::Open(std::string manifest_path) {
  absl::StatusOr<internal::v1::CheckpointManifest> manifest = ReadManifest(manifest_path);
  if (!manifest.ok()) return manifest.status();
  return CheckpointSource(std::move(manifest_path), *std::move(manifest));
}

absl::StatusOr<Resumption> CheckpointSource::Load(const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                                                  absl::Span<const std::unique_ptr<Table>> tables) const {
  const absl::StatusOr<ShardMap> map = ShardMap::FromProto(manifest_.map());
  if (!map.ok()) return absl::DataLossError(absl::StrCat(path_, ": ", map.status().message()));
  std::vector<v1::TensorSpec> tensor_specs;
  for (const OwnedTensor& tensor : tensors) tensor_specs.push_back(tensor.spec);
  std::vector<v1::TableSpec> table_specs;
  for (const std::unique_ptr<Table>& table : tables) table_specs.push_back(table->spec());
  absl::Status same = CheckSpecs("tensor", path_, map->tensors(), tensor_specs);
  if (same.ok()) same = CheckSpecs("table", path_, map->tables(), table_specs);
  if (!same.ok()) return same;
  Loading loading(path_, job, tensors, tables);
  for (uint32_t shard : loading.Shards(*map)) {
    if (shard >= static_cast<uint32_t>(manifest_.files_size())) {
      return absl::DataLossError(absl::StrCat(path_, ": shard ", shard, " has no file in the manifest"));
    }
    const absl::Status read =
        ReadCheckpointChain(path_, manifest_.files(shard),
                            [&](const internal::v1::SnapshotHeader& header, SnapshotPart part, ChainPlace place) {
                              return loading.Take(header, std::move(part), place);
                            });
    if (!read.ok()) return read;
  }
  absl::StatusOr<std::vector<ShardState::SliceEntry>> slices = loading.Finish();
  if (!slices.ok()) return slices.status();
  Resumption resumption{*std::move(slices), {}};
  for (uint64_t incarnation : manifest_.incarnations()) {
    resumption.windows.emplace_back().set_incarnation(incarnation + 1);
  }
  return resumption;
}

}  // namespace ballast
