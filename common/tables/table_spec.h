// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/table.pb.h"

namespace ballast {

// Checks that a name is 1 to 256 printable bytes without spaces. `kind` is "tensor" or "table", which share one rule.
absl::Status ValidateParameterName(absl::string_view kind, uint32_t id, const std::string& name);

// Checks the spec against the limits in table.proto, and that a table may have its initializer and optimizer.
// INVALID_ARGUMENT names the table, got and want.
absl::Status ValidateTableSpec(const v1::TableSpec& spec);

// Returns the spec's range_bits, or their default; the spec must be valid.
uint32_t RangeBits(const v1::TableSpec& spec);

// Returns true if it matters how often a push used an id.
bool CountsUses(const v1::TableSpec& spec);

// Returns the number of the table's ranges, 2^RangeBits.
inline uint32_t RangeCount(const v1::TableSpec& spec) { return uint32_t{1} << RangeBits(spec); }

}  // namespace ballast
