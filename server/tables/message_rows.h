// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// The distinct rows of a message, in the order of their hashes, and where the message has them.
// Thread safety: immutable.
class MessageRows {
 public:
  // `ids`: 8 bytes each, little-endian. INVALID_ARGUMENT if the last id is incomplete, or unless the hashes are
  // strictly ascending or the message says that its ids are `unordered`.
  static absl::StatusOr<MessageRows> Of(absl::string_view ids, uint32_t table_id, bool unordered);

  // Strictly ascending.
  absl::Span<const uint64_t> hashes() const { return hashes_; }

  // Number of ids in the message.
  size_t ids() const { return in_order() ? hashes_.size() : row_of_.size(); }

  // True if the message has the rows in this order, each once.
  bool in_order() const { return row_of_.empty(); }

  // The index of the hash of each id of the message; empty if in_order().
  absl::Span<const uint32_t> row_of() const { return row_of_; }

 private:
  void Sort();

  std::vector<uint64_t> hashes_;
  std::vector<uint32_t> row_of_;
};

}  // namespace ballast
