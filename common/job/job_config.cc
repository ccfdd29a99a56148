// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_config.h"

#include "absl/strings/str_cat.h"
#include "common/job/kind_names.h"
#include "common/job/limits.h"

namespace ballast {
namespace {

// Checks that such a parameter may have the kind that is set, if one is.
void CheckKind(const google::protobuf::Message& message, const std::string& path, v1::ParameterKind parameter,
               ValidationErrors& errors) {
  const google::protobuf::FieldDescriptor* const kind = KindField(message);
  if (kind == nullptr || IsKindFor(*kind, parameter)) return;
  errors.Add(path, kind->name(),
             absl::StrCat(Phrase(KindNames(*message.GetDescriptor(), parameter)), "; ", kind->name(), " is for ",
                          parameter == v1::PARAMETER_KIND_TABLE ? "tensors" : "tables", " only"));
}

}  // namespace

absl::Status ValidatePolicy(const v1::ConsistencyPolicy& policy, uint32_t workers) {
  ValidationErrors errors;
  CheckLimits(policy, "policy", errors);
  errors.Check(workers == 0 || policy.sync().quorum() <= workers, "policy.sync.quorum", policy.sync().quorum(),
               absl::StrCat("1 to the number of workers, ", workers, ", or 0 for all of them"));
  const auto check_staleness = [&](const auto& mode, const char* field) {
    errors.Check(mode.scale_by_staleness() || mode.staleness_of() != v1::ConsistencyPolicy::TABLE, field,
                 "TABLE without scale_by_staleness", "scale_by_staleness: true beside it, or ROW");
  };
  check_staleness(policy.async(), "policy.async.staleness_of");
  check_staleness(policy.bounded(), "policy.bounded.staleness_of");
  return errors.First();
}

std::optional<uint64_t> StalenessBound(const v1::ConsistencyPolicy& policy, uint32_t workers) {
  if (!policy.has_bounded() || workers == 0) return std::nullopt;
  return (workers - uint64_t{1}) * (2 * uint64_t{policy.bounded().steps_ahead()} + 1);
}

bool CountsStalenessOfTables(const v1::ConsistencyPolicy& policy) {
  return policy.async().staleness_of() == v1::ConsistencyPolicy::TABLE ||
         policy.bounded().staleness_of() == v1::ConsistencyPolicy::TABLE;
}

absl::Status ValidateOptimizer(const v1::Optimizer& optimizer, v1::ParameterKind parameter) {
  ValidationErrors errors;
  errors.Check(KindField(optimizer) != nullptr, "optimizer", "nothing",
               Phrase(KindNames(*v1::Optimizer::descriptor(), parameter)));
  CheckKind(optimizer, "optimizer", parameter, errors);
  CheckLimits(optimizer, "optimizer", errors);
  const v1::Schedule& schedule = optimizer.schedule();
  errors.Check(
      !schedule.total_from_job() || schedule.has_polynomial() || schedule.has_cosine() || schedule.has_one_cycle(),
      "optimizer.schedule.total_from_job", "true", "it only with polynomial, cosine or one_cycle");
  return errors.First();
}

absl::Status ValidateInitializer(const v1::Initializer& initializer, v1::ParameterKind parameter) {
  ValidationErrors errors;
  CheckKind(initializer, "initializer", parameter, errors);
  CheckLimits(initializer, "initializer", errors);
  const auto& uniform = initializer.uniform();
  errors.Check(!(uniform.low() > uniform.high()), "initializer.uniform",
               absl::StrCat("low ", uniform.low(), " and high ", uniform.high()), "low <= high");
  return errors.First();
}

absl::Duration ReturnTime(const v1::Durability& durability) {
  return absl::Seconds(durability.return_seconds() == 0 ? 60 : durability.return_seconds());
}

bool OutlivesAServer(const v1::Durability& durability) {
  switch (durability.mode()) {
    case v1::Durability::WAL:
    case v1::Durability::WAL_SYNC:
    case v1::Durability::STANDBY:
      return true;
    default:
      return false;
  }
}

bool TakesCheckpoints(const v1::Durability& durability) { return durability.mode() != v1::Durability::NONE; }

absl::Duration CheckpointInterval(const v1::Durability& durability) {
  return absl::Seconds(durability.checkpoint_seconds() > 0 ? durability.checkpoint_seconds() : 60);
}

uint32_t CheckpointsKept(const v1::Durability& durability) {
  return durability.keep_checkpoints() > 0 ? durability.keep_checkpoints() : 2;
}

}  // namespace ballast
