// SPDX-License-Identifier: Apache-2.0
#include "common/tensors/tensor_spec.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/tables/table_spec.h"

namespace ballast {
namespace {

absl::Status ValidateShape(const v1::TensorSpec& spec) {
  if (spec.shape_size() < 1 || spec.shape_size() > 8) {
    return absl::InvalidArgumentError(absl::StrCat("shape has rank ", spec.shape_size(), ", want 1 to 8"));
  }
  uint64_t elements = 1;
  for (int64_t dimension : spec.shape()) {
    if (dimension < 1) return absl::InvalidArgumentError(absl::StrCat("dimension ", dimension, ", want at least 1"));
    if (static_cast<uint64_t>(dimension) > kMaxTensorElements / elements) {
      return absl::InvalidArgumentError("more than 2^40 elements");
    }
    elements *= dimension;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateJobName(absl::string_view name) {
  const auto allowed = [](unsigned char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), allowed)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("job: got \"", name.substr(0, 80), "\", want 1 to 63 of a-z, 0-9, '_' and '-'"));
}

absl::Status ValidateTensorSpec(const v1::TensorSpec& spec) {
  if (absl::Status status = ValidateParameterName("tensor", spec.id(), spec.name()); !status.ok()) return status;
  absl::Status status = ValidateShape(spec);
  status.Update(ValidateInitializer(spec.initializer()));
  status.Update(ValidateOptimizer(spec.optimizer()));
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", spec.name(), "\": ", status.message()));
}

uint64_t CountElements(const v1::TensorSpec& spec) {
  uint64_t elements = 1;
  for (int64_t dimension : spec.shape()) elements *= dimension;
  return elements;
}

uint64_t CountSlices(const v1::TensorSpec& spec) {
  constexpr uint64_t kMostWithoutNeed = 8;
  const uint64_t elements = CountElements(spec);
  const uint64_t needed = (elements + kMaxSliceElements - 1) / kMaxSliceElements;
  const v1::Optimizer& optimizer = spec.optimizer();
  if (optimizer.has_lamb() || optimizer.clip_norm() > 0) return needed;
  return std::max(needed, std::min(elements / kMinCutElements, kMostWithoutNeed));
}

std::vector<v1::SliceRange> CutIntoSlices(const v1::TensorSpec& spec) {
  const uint64_t elements = CountElements(spec), count = CountSlices(spec);
  std::vector<v1::SliceRange> slices(count);
  uint64_t offset = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t size = elements / count + (i < elements % count ? 1 : 0);
    slices[i].set_index(i);
    slices[i].set_offset(offset);
    slices[i].set_elements(size);
    offset += size;
  }
  return slices;
}

}  // namespace ballast
