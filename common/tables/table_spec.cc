// SPDX-License-Identifier: Apache-2.0
#include "common/tables/table_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/job/limits.h"
#include "common/text/validation_errors.h"

namespace ballast {
namespace {

constexpr uint32_t kDefaultRangeBits = 12;

// In a sketch, a counter has 4 bits.
constexpr uint32_t kMostUsesOfSketch = 15;

absl::Status ValidateAdmission(const v1::Admission& admission) {
  if (!admission.sketch()) return absl::OkStatus();
  if (admission.min_uses() >= 2 && admission.min_uses() <= kMostUsesOfSketch) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("admission.min_uses: got ", admission.min_uses(), ", want 2 to ",
                                                 kMostUsesOfSketch, " with sketch"));
}

absl::Status ValidateEviction(const v1::Eviction& eviction, uint32_t ranges) {
  if (eviction.max_rows() > 0 && eviction.max_rows() < ranges) {
    return absl::InvalidArgumentError(
        absl::StrCat("eviction.max_rows: got ", eviction.max_rows(), ", want at least ", ranges,
                     ", one row for each of the table's ranges; range_bits sets their number"));
  }
  if (eviction.max_rows() > 0) return absl::OkStatus();
  for (const auto& [name, number] :
       {std::pair("half_life_steps", eviction.half_life_steps()), std::pair("min_norm", eviction.min_norm())}) {
    if (number == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("eviction.", name, ": got ", number,
                                                   " without max_rows; it orders the rows that max_rows evicts"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateParameterName(absl::string_view kind, uint32_t id, const std::string& name) {
  const auto printable = [](unsigned char c) { return absl::ascii_isgraph(c); };
  if (!name.empty() && name.size() <= 256 && std::all_of(name.begin(), name.end(), printable)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kind, " ", id, ": name: got \"", absl::CEscape(name.substr(0, 80)), "\" of ", name.size(),
                   " bytes, want 1 to 256 printable ones without spaces, such as fc1/weight"));
}

absl::Status ValidateTableSpec(const v1::TableSpec& spec) {
  if (absl::Status status = ValidateParameterName("table", spec.id(), spec.name()); !status.ok()) return status;
  ValidationErrors errors;
  CheckLimits(spec, "", errors);
  errors.Add(ValidateInitializer(spec.initializer(), v1::PARAMETER_KIND_TABLE));
  errors.Add(ValidateOptimizer(spec.optimizer(), v1::PARAMETER_KIND_TABLE));
  if (spec.has_admission()) errors.Add(ValidateAdmission(spec.admission()));
  if (spec.has_eviction()) errors.Add(ValidateEviction(spec.eviction(), RangeCount(spec)));
  const absl::Status status = errors.First();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("table \"", spec.name(), "\": ", status.message()));
}

uint32_t RangeBits(const v1::TableSpec& spec) { return spec.range_bits() == 0 ? kDefaultRangeBits : spec.range_bits(); }

bool CountsUses(const v1::TableSpec& spec) {
  return spec.admission().min_uses() > 1 || spec.eviction().half_life_steps() > 0;
}

}  // namespace ballast
