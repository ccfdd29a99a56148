// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"

namespace ballast {

// What a shard tells of each change before it makes it, so that the change outlives the process.
// Thread safety: all methods may be called from any thread.
class ShardJournal {
 public:
  virtual ~ShardJournal() = default;

  // Writes a record, `behind` following the message, and answers its position. Calls `admit` first, which says whether
  // the record is still wanted; 0 if it is not, and nothing is written. Calls `in_order` once the record is written.
  // Both calls for one record come before those for the next: so check, record and order are one step. Neither may
  // block. RESOURCE_EXHAUSTED where there is no room, UNAVAILABLE where nothing can be written any more: nothing is
  // written then, and `in_order` is not called, though `admit` may have been.
  virtual absl::StatusOr<uint64_t> Append(const internal::v1::ShardRecord& record,
                                          absl::Span<const absl::string_view> behind, absl::FunctionRef<bool()> admit,
                                          absl::FunctionRef<void()> in_order) = 0;

  // Calls `done` once, when the record and those before it outlive what they must; may call it before returning.
  virtual void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) = 0;

  // The same, when no death of a machine takes the record any more, whatever the job's durability promises of others.
  virtual void AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) = 0;
};

}  // namespace ballast
