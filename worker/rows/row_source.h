// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/row_indexer.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Interface to the rows that a batch uses of a model's tables.
// Thread safety: one thread at a time.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Returns one view for each of the model's tables. Rows of a job have the updates of the steps before `step` under
  // policy sync. The result is valid until the next call.
  virtual absl::StatusOr<absl::Span<const RowsView>> FetchForEvaluation(uint64_t step,
                                                                        absl::Span<const BatchRows> rows) = 0;
};

}  // namespace ballast
