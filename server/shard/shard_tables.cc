// SPDX-License-Identifier: Apache-2.0
#include "server/shard/shard_tables.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/status/error_reason.h"
#include "common/tensors/declarations.h"

namespace ballast {
namespace {

absl::Status Invalid(absl::string_view message) {
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST, absl::InvalidArgumentError(message));
}

const v1::ConsistencyPolicy& PolicyOf(const JobConfig& job, const v1::TableSpec& spec) {
  return spec.has_policy() ? spec.policy() : job.policy;
}

absl::Status CheckPolicy(const JobConfig& job, const v1::TableSpec& spec) {
  const v1::ConsistencyPolicy& policy = PolicyOf(job, spec);
  absl::Status status = ValidatePolicy(policy, job.workers);
  const bool known =
      policy.has_sync() || policy.has_bounded() || (policy.has_async() && policy.async().delay_compensation() == 0);
  if (status.ok() && !known) {
    status = absl::InvalidArgumentError(
        absl::StrCat("got policy ", policy.ShortDebugString(), spec.has_policy() ? "" : " of the job",
                     ", want sync, bounded, or async without delay compensation; set the table's own policy"));
  }
  if (status.ok()) return status;
  return Invalid(absl::StrCat("table \"", spec.name(), "\": ", status.message()));
}

Table::Policy::Scaling ScalingOf(const v1::ConsistencyPolicy& policy) {
  using Scaling = Table::Policy::Scaling;
  if (!policy.async().scale_by_staleness() && !policy.bounded().scale_by_staleness()) return Scaling::kNone;
  return CountsStalenessOfTables(policy) ? Scaling::kByTable : Scaling::kByRow;
}

Table::Policy TablePolicyOf(const JobConfig& job, const v1::TableSpec& spec) {
  const v1::ConsistencyPolicy& policy = PolicyOf(job, spec);
  Table::Policy to;
  to.workers = job.workers;
  to.scaling = ScalingOf(policy);
  if (policy.has_sync()) to.quorum = policy.sync().quorum() == 0 ? job.workers : policy.sync().quorum();
  if (policy.has_bounded()) to.steps_ahead = policy.bounded().steps_ahead();
  return to;
}

bool SameSpans(absl::Span<const v1::RangeSpan> a, absl::Span<const v1::RangeSpan> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const v1::RangeSpan& one, const v1::RangeSpan& other) {
    return one.first() == other.first() && one.count() == other.count();
  });
}

}  // namespace

absl::StatusOr<CheckedRows::Part> CheckRows(uint32_t shard, const PushTicket& push, uint32_t messages_of_step,
                                            Table* table, const RowGradientsView& view, bool accept_non_finite) {
  const auto named = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat("shard ", shard, ": rows of \"", table->spec().name(), "\" by worker ",
                                         push.worker, " at step ", push.step));
  };
  CheckedRows::Part part;
  part.table = table;
  // A push of no examples completes the step and adds nothing.
  if (push.examples == 0) return part;
  absl::StatusOr<RowGradients> gradients = DecodeRowGradients(view, table->spec().dim(), accept_non_finite);
  if (!gradients.ok()) return named(gradients.status());
  part.gradients = *std::move(gradients);
  const absl::Span<const uint64_t> hashes = part.gradients.order.hashes();
  if (absl::Status status = table->CheckOwned(hashes); !status.ok()) return named(status);
  absl::StatusOr<ByteBudget::Reservation> room = table->MakeRoom(hashes);
  if (!room.ok()) return named(room.status());
  part.room = *std::move(room);
  absl::StatusOr<ByteBudget::Reservation> waiting =
      table->ReserveGradients(StepMessageOf(push, messages_of_step),
                              part.gradients.values.size() * sizeof(float) + hashes.size() * sizeof(uint64_t));
  if (!waiting.ok()) return named(waiting.status());
  part.waiting = *std::move(waiting);
  return part;
}

absl::StatusOr<ShardTables::Addition> ShardTables::Check(const JobConfig& job,
                                                         absl::Span<const OwnedTable> tables) const {
  Addition addition;
  for (const OwnedTable& table : tables) {
    if (absl::Status status = CheckPolicy(job, table.spec); !status.ok()) return status;
    const absl::StatusOr<Table*> known = Find(table.spec.id());
    if (known.ok()) {
      if (absl::Status status = CheckSameSpec((*known)->spec(), table.spec); !status.ok()) return status;
      if (SameSpans((*known)->owned().spans, table.spans)) continue;
      return WithReason(v1::ERROR_REASON_TENSOR_DIFFERS,
                        absl::FailedPreconditionError(
                            absl::StrCat("table \"", table.spec.name(), "\" was declared before with other ranges")),
                        {{"tensor", table.spec.name()}});
    }
    absl::StatusOr<std::unique_ptr<Table>> made = Table::Make(table, TablePolicyOf(job, table.spec), &memory_);
    if (!made.ok()) return made.status();
    addition.push_back(*std::move(made));
  }
  return addition;
}

absl::Status ShardTables::CheckNames(absl::FunctionRef<std::vector<OwnedTensor>()> tensors,
                                     const TensorCatalog::Addition& tensor_addition, const Addition& addition) const {
  const std::vector<Table*> known = All();
  if (known.empty() && addition.empty()) return absl::OkStatus();
  const std::vector<OwnedTensor> known_tensors = tensors();
  Declarations declared;
  absl::Status status;
  const auto add = [&](const auto& spec) {
    if (status.ok()) status = declared.Add(spec).status();
  };
  for (const OwnedTensor& tensor : known_tensors) add(tensor.spec);
  for (const Table* table : known) add(table->spec());
  for (const auto& [id, tensor] : tensor_addition.tensors) add(tensor->spec);
  for (const std::unique_ptr<Table>& table : addition) add(table->spec());
  return status;
}

absl::StatusOr<ByteBudget::Reservation> ShardTables::ReserveTensors(uint64_t bytes) {
  if (bytes == 0) return ByteBudget::Reservation();
  absl::StatusOr<ByteBudget::Reservation> memory = budget_.Reserve(bytes);
  if (memory.ok()) return memory;
  return WithReason(v1::ERROR_REASON_MEMORY_LIMIT,
                    absl::FailedPreconditionError(absl::StrCat("shard ", shard_, ": the tensors take ", bytes,
                                                               " bytes, but of the memory limit of ", budget_.limit(),
                                                               " bytes ", budget_.used(), " are in use")));
}

void ShardTables::Add(Addition addition, ByteBudget::Reservation tensors) {
  absl::MutexLock lock(&mutex_);
  tensors_.push_back(std::move(tensors));
  for (std::unique_ptr<Table>& table : addition) {
    const uint32_t id = table->spec().id();
    tables_[id] = std::move(table);
  }
}

absl::StatusOr<Table*> ShardTables::Find(uint32_t id) const {
  absl::ReaderMutexLock lock(&mutex_);
  const auto found = tables_.find(id);
  if (found != tables_.end()) return found->second.get();
  return WithReason(v1::ERROR_REASON_UNKNOWN_TENSOR,
                    absl::NotFoundError(absl::StrCat("shard ", shard_, ": table ", id, " is not declared")),
                    {{"tensor", absl::StrCat(id)}});
}

bool ShardTables::NeedTime() const {
  absl::ReaderMutexLock lock(&mutex_);
  return std::any_of(tables_.begin(), tables_.end(),
                     [](const auto& table) { return table.second->spec().eviction().ttl_seconds() > 0; });
}

std::vector<Table*> ShardTables::All() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<Table*> tables;
  for (const auto& [id, table] : tables_) tables.push_back(table.get());
  return tables;
}

std::vector<OwnedTable> ShardTables::Declared() const {
  std::vector<OwnedTable> tables;
  for (const Table* table : All()) tables.push_back(table->owned());
  return tables;
}

absl::StatusOr<CheckedRows> ShardTables::CheckPush(const PushTicket& push, uint32_t messages_of_step,
                                                   absl::Span<const RowGradientsView> gradients,
                                                   bool accept_non_finite) const {
  CheckedRows checked;
  for (const RowGradientsView& view : gradients) {
    const absl::StatusOr<Table*> table = Find(view.table_id);
    if (!table.ok()) return table.status();
    absl::StatusOr<CheckedRows::Part> part = CheckRows(shard_, push, messages_of_step, *table, view, accept_non_finite);
    if (!part.ok()) return part.status();
    checked.parts.push_back(*std::move(part));
  }
  for (Table* table : All()) {
    const auto has = [&](const CheckedRows::Part& part) { return part.table == table; };
    if (std::any_of(checked.parts.begin(), checked.parts.end(), has)) continue;
    checked.parts.emplace_back().table = table;
  }
  return checked;
}

absl::StatusOr<bool> ShardTables::CheckSteps(const PushTicket& push, const CheckedRows& checked,
                                             bool may_have_lost) const {
  bool behind = false;
  for (const CheckedRows::Part& part : checked.parts) {
    const absl::Status status = part.table->CheckStep(push.step);
    if (status.ok()) continue;
    const uint64_t least = push.step - std::min(push.step, StepAccumulator::kMostLost);
    if (may_have_lost && part.table->CheckStep(least).ok()) {
      behind = true;
      continue;
    }
    return WithSubjects(
        Annotate(status, absl::StrCat("shard ", shard_, ": \"", part.table->spec().name(), "\": worker ", push.worker)),
        {{"tensor", part.table->spec().name()}, {"worker", absl::StrCat(push.worker)}});
  }
  return behind;
}

}  // namespace ballast
