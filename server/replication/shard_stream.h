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

// What a server sends to its standby, as ballast/internal/v1/standby_service.proto has it: records of storage.proto,
// cut into messages.

// The bytes of a change: the message, and what stands behind it.
std::string JoinChange(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind);

// The same of a push, with those of its gradients alone for which `keep` has true.
std::string JoinPushOf(const std::vector<bool>& keep, const internal::v1::ShardRecord& record,
                       absl::Span<const absl::string_view> behind);

// Sends one record; false as soon as `send` says so.
using SendPart = absl::FunctionRef<bool(const internal::v1::ReplicateRequest& part)>;
bool SendRecord(internal::v1::ReplicateRequest::Kind kind, uint64_t position, absl::string_view record, SendPart send);

// The pieces of a transfer: a shard's job and tensors, then slices of them, then the end.
bool SendOutline(uint32_t shard, uint64_t position, const ShardState& outline, SendPart send);
bool SendSlice(uint64_t position, const ShardState::SliceEntry& slice, SendPart send);
bool SendEnd(uint64_t position, const internal::v1::TransferEnd& end, SendPart send);

// Messages and bytes of data, as ReplicateResponse.taken counts them.
inline uint64_t CountPart(const internal::v1::ReplicateRequest& part) { return 1 + part.data().size(); }

}  // namespace ballast
