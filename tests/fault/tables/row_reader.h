// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "tests/fault/tables/counting_worker.h"
#include "tests/fault/tables/row_ledger.h"

namespace ballast {

// Reads rows 0 to `rows` - 1 of RowDraw and all other rows that the ledger knows, of every counting table, once by TCP
// and once by shared memory, and compares them with the ledger. Nobody may push meanwhile. OUT_OF_RANGE if a row has
// more uses than fp32 counts exactly.
absl::StatusOr<LedgerReport> CompareAllRows(const CountingJob& job, uint32_t rows, const RowLedger& ledger);

}  // namespace ballast
