// SPDX-License-Identifier: Apache-2.0
#include "common/tables/table_spec.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/job/limits.h"
#include "common/text/validation_errors.h"

namespace ballast {
namespace {

constexpr uint32_t kDefaultRangeBits = 12;

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
  const absl::Status status = errors.First();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("table \"", spec.name(), "\": ", status.message()));
}

uint32_t RangeBits(const v1::TableSpec& spec) { return spec.range_bits() == 0 ? kDefaultRangeBits : spec.range_bits(); }

}  // namespace ballast
