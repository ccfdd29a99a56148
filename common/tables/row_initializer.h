// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// The initial values of a table's rows. Element e of row `id` is a function of the table's seed and name, id and e
// alone, with the same bits on every machine, so a pull of a missing row creates nothing. Deliberately does not know
// which rows exist. Thread safety: immutable.
class RowInitializer {
 public:
  // INVALID_ARGUMENT for numbers outside the limits of tensor.proto, and for kinds that only tensors have.
  static absl::StatusOr<RowInitializer> Make(const v1::Initializer& config, uint64_t seed, absl::string_view table);

  // Writes elements [first, first + values.size()) of row `id`.
  void Fill(uint64_t id, size_t first, absl::Span<float> values) const;
  // Writes a row.
  void Fill(uint64_t id, absl::Span<float> row) const { Fill(id, 0, row); }

 private:
  RowInitializer(const v1::Initializer& config, uint64_t stream) : config_(config), stream_(stream) {}

  v1::Initializer config_;
  uint64_t stream_;
};

}  // namespace ballast
