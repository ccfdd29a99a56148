// SPDX-License-Identifier: Apache-2.0
// The contents of a shard: its declaration, captures and restored state. Its calls are in parameter_shard.cc.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/flight/flight_dump.h"
#include "common/status/error_reason.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_record.h"

namespace ballast {
namespace {

std::vector<ShardState::SliceEntry> ShareAll(absl::Span<const std::pair<SliceKey, Slice*>> slices) {
  std::vector<ShardState::SliceEntry> captured;
  captured.reserve(slices.size());
  for (const auto& [key, slice] : slices) {
    SliceState shared = slice->Share();
    captured.push_back({key, std::move(shared.weights), std::move(shared.policy)});
  }
  return captured;
}

// True if at most half of the tables' bytes have changed since their capture for that checkpoint. False if it was not
// their last one.
bool FewChangedSince(uint64_t checkpoint, absl::Span<Table* const> tables) {
  uint64_t bytes = 0, changed = 0;
  for (const Table* table : tables) {
    const std::optional<uint64_t> rows = table->ChangedSince(checkpoint);
    if (!rows.has_value()) return false;
    changed += *rows * table->image_bytes();
    bytes += table->rows() * table->image_bytes();
  }
  return !tables.empty() && changed <= bytes / 2;
}
}  // namespace

absl::StatusOr<std::vector<OwnedTensor>> ParameterShard::DeclareFrom(const std::string& checkpoint,
                                                                     const JobConfig& job,
                                                                     std::vector<OwnedTensor> tensors,
                                                                     absl::Span<const OwnedTable> tables) {
  // Tensors that fit now still fit when they are added, because only a declaration adds any.
  absl::MutexLock declaring(&declaring_);
  absl::StatusOr<TensorCatalog::Addition> addition = job_.CheckDeclaration(job, tensors);
  if (!addition.ok()) return addition.status();
  absl::StatusOr<ShardTables::Addition> added_tables = tables_.Check(job, tables);
  if (!added_tables.ok()) return added_tables.status();
  if (addition->tensors.empty() && added_tables->empty() && !job_.name().empty()) return tensors;
  const absl::Status names = tables_.CheckNames([this] { return job_.Outline().tensors; }, *addition, *added_tables);
  if (!names.ok()) return names;
  absl::StatusOr<ByteBudget::Reservation> memory = tables_.ReserveTensors(addition->bytes + addition->other_bytes);
  if (!memory.ok()) return memory.status();
  const bool keeps_journal = changes_.journal() != nullptr || options_.open_journal;
  if (absl::Status status = job_.CheckDurability(job, options_.keeps_checkpoints, keeps_journal); !status.ok()) {
    return status;
  }
  absl::StatusOr<Resumption> resumption = Resumption();
  if (!checkpoint.empty()) {
    std::vector<OwnedTensor> added;
    for (const auto& [id, tensor] : addition->tensors) added.push_back({tensor->spec, tensor->slices});
    resumption = options_.load_checkpoint(checkpoint, job, added, *added_tables);
  }
  if (!resumption.ok()) return resumption.status();
  if (absl::Status status = job_.MakeSlices(job, std::move(resumption->slices), *addition); !status.ok()) {
    if (absl::Status ended = job_.closed(); !ended.ok()) return ended;
    return Annotate(status, absl::StrCat("shard ", options_.rank, checkpoint.empty() ? "" : ": cannot resume"));
  }
  const absl::StatusOr<ShardJournal*> journal = OpenJournal(job);
  if (!journal.ok()) return journal.status();
  absl::MutexLock adding(&adding_tables_);
  ChangeSequencer::AtRest rest(changes_);
  // The shard may have been closed during the load.
  if (absl::Status status = job_.closed(); !status.ok()) return status;
  ShardJournal* const before = changes_.journal();
  changes_.set_journal(*journal);
  if (*journal != nullptr && job.durability.mode() != v1::Durability::CHECKPOINT) {
    JournalEntry entry;
    *entry.record.mutable_declaration() = EncodeDeclaration(job, tensors, tables, checkpoint);
    if (absl::Status status = changes_.Record(entry); !status.ok()) {
      changes_.set_journal(before);
      return status;
    }
  }
  for (const auto& [id, tensor] : addition->tensors) FlightRecorder::OfProcess().NameTensor(id, tensor->spec.name());
  tables_.Add(*std::move(added_tables), *std::move(memory));
  job_.Add(job, *std::move(addition), resumption->windows);
  return tensors;
}

absl::StatusOr<ShardJournal*> ParameterShard::OpenJournal(const JobConfig& job) const {
  const v1::Durability::Mode mode = job.durability.mode();
  ShardJournal* const journal = changes_.journal();
  if (journal != nullptr || mode == v1::Durability::NONE || mode == v1::Durability::CHECKPOINT) return journal;
  return options_.open_journal(job);
}

ShardState ParameterShard::Capture(absl::FunctionRef<void()> at_rest) {
  ChangeSequencer::AtRest rest(changes_);
  at_rest();
  ShardState capture = job_.Outline();
  capture.tables = tables_.Declared();
  capture.slices = ShareAll(job_.Slices());
  for (const Table* table : tables_.All()) {
    capture.table_entries.push_back({table->spec().id(), table->state(), table->BeginCapture()});
  }
  return capture;
}

ShardState ParameterShard::CaptureCheckpoint(uint64_t id, uint64_t since) {
  ChangeSequencer::AtRest rest(changes_);
  ShardState capture = job_.Outline();
  capture.tables = tables_.Declared();
  capture.slices = ShareAll(job_.Slices());
  const std::vector<Table*> tables = tables_.All();
  capture.since_checkpoint = FewChangedSince(since, tables) ? since : 0;
  for (Table* table : tables) {
    capture.table_entries.push_back(
        {table->spec().id(), table->state(), table->BeginCheckpoint(id, capture.since_checkpoint > 0)});
  }
  return capture;
}

ShardState ParameterShard::CaptureOutline(absl::FunctionRef<void()> at_rest) {
  ChangeSequencer::AtRest rest(changes_);
  at_rest();
  ShardState outline = job_.Outline();
  outline.tables = tables_.Declared();
  return outline;
}

std::vector<ShardState::SliceEntry> ParameterShard::CaptureSlices(absl::Span<const SliceKey> keys,
                                                                  absl::FunctionRef<void()> at_rest) {
  ChangeSequencer::AtRest rest(changes_);
  at_rest();
  std::vector<std::pair<SliceKey, Slice*>> slices;
  for (SliceKey key : keys) {
    const absl::StatusOr<Slice*> slice = job_.Find(key);
    if (slice.ok()) slices.emplace_back(key, *slice);
  }
  return ShareAll(slices);
}

std::optional<ShardState::TableEntry> ParameterShard::CaptureRanges(uint32_t table, uint32_t first, uint32_t count,
                                                                    absl::FunctionRef<void()> at_rest) {
  ChangeSequencer::AtRest rest(changes_);
  at_rest();
  const absl::StatusOr<Table*> found = tables_.Find(table);
  if (!found.ok()) return std::nullopt;
  return ShardState::TableEntry{table, (*found)->state(), (*found)->BeginCapture(first, count)};
}

absl::Status ParameterShard::Restore(ShardState capture) {
  absl::StatusOr<ShardBuilder> builder =
      BeginRestore(std::move(capture.job), std::move(capture.tensors), capture.tables);
  if (!builder.ok()) return builder.status();
  for (ShardState::SliceEntry& slice : capture.slices) {
    if (absl::Status status = builder->Add(std::move(slice), 0); !status.ok()) return status;
  }
  for (const ShardState::TableEntry& table : capture.table_entries) {
    if (absl::Status status = builder->tables().AddState(table.id, table.state, 0); !status.ok()) return status;
    while (const std::optional<RowsPiece> piece = table.rows->Next()) {
      const absl::string_view images(reinterpret_cast<const char*>(piece->rows.words.data()),
                                     piece->rows.words.size() * sizeof(uint32_t));
      const std::vector<absl::string_view> uses(piece->uses.begin(), piece->uses.end());
      const absl::Status status =
          builder->tables().AddRows(table.id, {piece->range, piece->ranges, piece->rows.hashes, images, uses}, 0);
      if (!status.ok()) return status;
    }
  }
  absl::StatusOr<BuiltShard> built = (*std::move(builder)).Finish(std::move(capture.windows));
  return built.ok() ? Adopt(*std::move(built)) : built.status();
}

absl::StatusOr<ShardBuilder> ParameterShard::BeginRestore(JobConfig job, std::vector<OwnedTensor> tensors,
                                                          absl::Span<const OwnedTable> tables) const {
  TableBuilder rows(options_.rank,
                    [this, job](absl::Span<const OwnedTable> declared) { return tables_.Check(job, declared); });
  if (absl::Status status = rows.Declare(tables); !status.ok()) return status;
  return ShardBuilder::Begin(options_.rank, options_.max_state_bytes, std::move(job), std::move(tensors),
                             std::move(rows));
}

absl::Status ParameterShard::Adopt(BuiltShard built) {
  DeclaredJob::Windows windows = DeclaredJob::MakeWindows(built.job.workers, built.windows);
  absl::MutexLock declaring(&declaring_);
  absl::StatusOr<ByteBudget::Reservation> memory =
      tables_.ReserveTensors(built.catalog.bytes() + built.catalog.other_bytes());
  if (!memory.ok()) return memory.status();
  ChangeSequencer::AtRest rest(changes_);
  const absl::Status adopted = job_.Adopt(std::move(built.job), std::move(built.catalog), std::move(windows));
  if (adopted.ok()) tables_.Add(std::move(built.tables), *std::move(memory));
  return adopted;
}

void ParameterShard::NoteRecovery(const ShardRecovery& recovery) {
  absl::MutexLock lock(&mutex_);
  recovery_ = recovery;
  may_have_lost_ = recovery.may_have_lost;
}

void ParameterShard::Close(absl::Status reason) {
  if (job_.Close(reason)) waits_.EndAll(reason);
}

void ParameterShard::StartJournal(ShardJournal* journal) {
  ChangeSequencer::AtRest rest(changes_);
  changes_.set_journal(journal);
}

ShardStatus ParameterShard::status() const {
  ShardStatus status{job_.summary()};
  {
    absl::ReaderMutexLock lock(&mutex_);
    status.recovery = recovery_;
  }
  status.lost_updates = counts_.lost_updates;
  status.snapshots = counts_.snapshots;
  status.snapshot_failures = counts_.snapshot_failures;
  status.pushes = counts_.pushes;
  status.pulls = counts_.pulls;
  status.duplicates = counts_.duplicates;
  status.dropped = counts_.dropped;
  status.waiting = waits_.size();
  status.longest_wait = waits_.oldest();
  status.wait_bytes = worker_waits_.used() + reader_waits_.used();
  status.wait_bytes_limit = worker_waits_.limit() + reader_waits_.limit();
  status.refused_waits = worker_waits_.refused() + reader_waits_.refused();
  status.staleness = counts_.staleness.ToProto();
  status.updates = status.staleness.count();
  status.max_staleness = status.staleness.max();
  status.wait_microseconds = counts_.wait_microseconds.ToProto();
  for (const Table* table : tables_.All()) {
    status.tables.push_back({table->status(), table->spec().id(), table->spec().name()});
    status.state_bytes += status.tables.back().bytes;
  }
  if (const ShardJournal* const journal = changes_.journal(); journal != nullptr) status.log = journal->log();
  status.state_bytes_limit = options_.max_state_bytes;
  status.old_incarnation = changes_.old_incarnation();
  status.applying = absl::Nanoseconds(counts_.apply_nanoseconds.load());
  status.waited_for_locks = absl::Nanoseconds(counts_.lock_wait_nanoseconds.load());
  status.applied_bytes = counts_.applied_bytes;
  status.uptime_seconds = absl::ToDoubleSeconds(clock_->Now() - started_);
  return status;
}
}  // namespace ballast
