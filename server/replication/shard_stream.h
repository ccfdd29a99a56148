// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/standby_service.pb.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/shard/shard_state.h"

namespace ballast {

// The server's messages to its standby (ballast/internal/v1/standby_service.proto): records of storage.proto, split
// into parts.

// Returns the bytes of a change: the message and the bytes that follow it.
std::string JoinChange(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind);

// Like JoinChange, for a push with only those gradients for which `keep` is true.
std::string JoinPushOf(const std::vector<bool>& keep, const internal::v1::ShardRecord& record,
                       absl::Span<const absl::string_view> behind);

// Sends one record. Stops and returns false when `send` does.
using SendPart = absl::FunctionRef<bool(const internal::v1::ReplicateRequest& part)>;
bool SendRecord(internal::v1::ReplicateRequest::Kind kind, uint64_t position, absl::string_view record, SendPart send);

// The parts of a transfer, in this order: the shard's job and tensors, the slices, the end.
bool SendOutline(uint32_t shard, uint64_t position, const ShardState& outline, SendPart send);
bool SendSlice(uint64_t position, const ShardState::SliceEntry& slice, SendPart send);
bool SendEnd(uint64_t position, const internal::v1::TransferEnd& end, SendPart send);

// The number of messages plus bytes of data, as in ReplicateResponse.taken.
inline uint64_t CountPart(const internal::v1::ReplicateRequest& part) { return 1 + part.data().size(); }

}  // namespace ballast
