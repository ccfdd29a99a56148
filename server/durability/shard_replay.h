// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Makes a change again that another shard, or this one in an earlier life, has made and recorded: a declaration, push
// or pause, with what stands behind the record. One after another, in their order, they make the same shard. What a
// change was answered with it is answered with again. Answers false, having changed nothing, for a change that would
// have been refused as of an older incarnation or of a forgotten sequence number if it had come in now.
absl::StatusOr<bool> ApplyChange(ParameterShard& shard, const internal::v1::ShardRecord& change,
                                 absl::string_view behind);

// The same change, which is at `position`, to a shard that is put together: a push of slices that are there; of a
// declaration the tensors alone.
absl::Status ApplyChange(ShardBuilder& shard, uint64_t position, const internal::v1::ShardRecord& change,
                         absl::string_view behind);

}  // namespace ballast
