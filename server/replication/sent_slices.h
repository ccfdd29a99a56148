// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/shard/shard_state.h"

namespace ballast {

// A slice to send.
struct OwnedSlice {
  SliceKey key;
  uint64_t elements = 0;
};

// Owns the set of slices that a transfer has sent, which decides what a standby needs of a change.
// Thread safety: none; guarded by its journal.
class SentSlices {
 public:
  void Begin();
  void Add(absl::Span<const SliceKey> slices) { sent_.insert(slices.begin(), slices.end()); }
  // Tensors were declared; their slices must be sent too.
  void OnDeclaration() { declared_ = true; }
  // Returns true, and ends the transfer, if no tensors were declared since Begin or the last call.
  bool TryEnd();
  // Returns the slices that were not sent.
  std::vector<OwnedSlice> Unsent(std::vector<OwnedSlice> slices) const;
  // Ends the transfer.
  void Clear();

  // True for each gradient of a push whose slice was sent. Empty: send all.
  std::vector<bool> Wanted(const internal::v1::ShardRecord& record) const;

 private:
  bool transferring_ = false;
  bool declared_ = false;
  absl::flat_hash_set<SliceKey> sent_;
};

}  // namespace ballast
