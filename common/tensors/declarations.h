// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/table.pb.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Compare two declarations. FAILED_PRECONDITION, with the difference, if they are not equal.
absl::Status CheckSameSpec(const v1::TensorSpec& declared, const v1::TensorSpec& again);
absl::Status CheckSameSpec(const v1::TableSpec& declared, const v1::TableSpec& again);

// Owns the ids and names that are taken, by tensors and tables together. Thread safety: none.
class Declarations {
 public:
  // Returns false if the same spec is known. FAILED_PRECONDITION if another one has its id or name. `spec` must outlive
  // this.
  absl::StatusOr<bool> Add(const v1::TensorSpec& spec);
  absl::StatusOr<bool> Add(const v1::TableSpec& spec);

 private:
  using Known = std::variant<const v1::TensorSpec*, const v1::TableSpec*>;

  template <typename Spec>
  absl::StatusOr<bool> AddSpec(const Spec& spec);

  absl::flat_hash_map<uint32_t, Known> by_id_;
  absl::flat_hash_map<absl::string_view, Known> by_name_;
};

}  // namespace ballast
