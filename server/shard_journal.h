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

  // Writes a record, `behind` following the message, and answers its position. Calls `in_order` once it is written:
  // calls for different records come one after another, in the order of the records. RESOURCE_EXHAUSTED where there is
  // no room, UNAVAILABLE where nothing can be written any more: nothing is written then, and `in_order` is not called.
  virtual absl::StatusOr<uint64_t> Append(const internal::v1::ShardRecord& record,
                                          absl::Span<const absl::string_view> behind,
                                          absl::FunctionRef<void()> in_order) = 0;

  // Calls `done` once, when the record and those before it outlive what they must; may call it before returning.
  virtual void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) = 0;
};

}  // namespace ballast
