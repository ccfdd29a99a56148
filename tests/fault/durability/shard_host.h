// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/file_system.h"
#include "server/durability/shard_store.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Owns a shard and its directory like a server does, but without a server, so that its death costs nothing. The job
// has two tensors under sgd with learning rate 1. Push number n (from 1) of worker w subtracts 1 from element w of
// the first and a value that depends on w, n and the element from each element of the second, so the weights tell
// which pushes they contain.
// Thread safety: Push may be called from any thread, once for each worker at a time; the rest by one.
class ShardHost {
 public:
  struct Options {
    std::string folder;
    v1::Durability::Mode mode = v1::Durability::WAL;
    uint32_t workers = 1;
    // Small, so that a short run has several files and snapshots.
    uint64_t log_bytes = 64 << 10;
    uint64_t file_bytes = 16 << 10;
  };

  // Recovers the content of the directory; returns its errors.
  static absl::StatusOr<std::unique_ptr<ShardHost>> Open(Options options, FileSystem* files);

  // Sends or resends push `number` of a worker and waits until it may be acknowledged.
  absl::Status Push(uint32_t worker, uint64_t number);

  // Returns how many pushes of each worker are in the weights; DATA_LOSS if the weights match no such pushes.
  absl::StatusOr<std::vector<uint64_t>> Applied();

  ShardStore& store() { return *store_; }

 private:
  explicit ShardHost(Options options);
  absl::Status Recover(FileSystem* files);
  absl::Status Declare();

  const Options options_;
  std::unique_ptr<ParameterShard> shard_;
  std::unique_ptr<ShardStore> store_;
};

}  // namespace ballast
