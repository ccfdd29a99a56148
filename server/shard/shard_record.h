// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/shard/push.h"
#include "server/shard/shard_state.h"

namespace ballast {

// A change as the journal records it.
struct JournalEntry {
  internal::v1::ShardRecord record;
  // The bytes that follow the record, as views of the caller's memory.
  std::vector<absl::string_view> payloads;
  // Number of slices in whose order the change has a place.
  size_t parts = 0;
};

JournalEntry EncodePush(const PushTicket& push, absl::Span<const GradientView> gradients);
// Encodes the values with the given indices, which are set at rest.
JournalEntry EncodeValues(absl::Span<const ValueView> values, absl::Span<const size_t> indices);
JournalEntry EncodePause(uint32_t worker, uint64_t incarnation, size_t slices);
JournalEntry EncodeCatchUp(uint32_t worker, uint64_t incarnation, absl::Span<const SeenSlice> seen);

// `checkpoint`: the one that the tensors start from, if any.
internal::v1::LoggedDeclaration EncodeDeclaration(const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                                                  const std::string& checkpoint = "");

JobConfig DecodeJobConfig(const internal::v1::LoggedDeclaration& declaration);
std::vector<OwnedTensor> DecodeTensors(const internal::v1::LoggedDeclaration& declaration);

}  // namespace ballast
