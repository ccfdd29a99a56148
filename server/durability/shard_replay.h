// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Replays a recorded change (a declaration, push, values, pause or catch-up) of another shard or of an earlier
// process of this one; `behind` holds the bytes after the record's message. The same changes in the same order
// produce the same shard, with the same results of pushes. Returns false and changes nothing if the shard would now
// refuse the change because of an older incarnation or a forgotten sequence number.
absl::StatusOr<bool> ApplyChange(ParameterShard& shard, const internal::v1::ShardRecord& change,
                                 absl::string_view behind);

// Like above, for a change at `position` and a shard under construction: applies a push to the slices that were
// added, and only adds the tensors of a declaration.
absl::Status ApplyChange(ShardBuilder& shard, uint64_t position, const internal::v1::ShardRecord& change,
                         absl::string_view behind);

}  // namespace ballast
