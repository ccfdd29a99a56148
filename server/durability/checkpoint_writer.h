// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file_system.h"
#include "server/shard/shard_state.h"

namespace ballast {

// Writes a shard's part of checkpoints on a thread of its own while the shard goes on, one at a time. Invariant: it
// holds at most two captured shards, the one that it writes and the newest that waits. Thread safety: all methods may
// be called from any thread.
class CheckpointWriter {
 public:
  // How the last part begun went.
  struct Outcome {
    uint64_t id = 0;
    absl::StatusOr<FileDigest> digest;
  };

  // `files` must outlive it. The folder is made with the first checkpoint; where it is empty there is none, and every
  // part fails.
  CheckpointWriter(FileSystem* files, std::string folder, uint32_t shard);
  // Waits for what is being written.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;

  // Begins to write `capture` as this shard's part of checkpoint `id`, after what is being written; never waits. One
  // that still waits for that was given up, and is dropped.
  void Begin(uint64_t id, uint32_t shards, ShardState capture);

  // Nothing until the part begun last is written, read again and found to be on the disk as it should be, or has
  // failed.
  std::optional<Outcome> outcome() const;

 private:
  struct Part {
    uint64_t id = 0;
    uint32_t shards = 0;
    ShardState capture;
  };

  void Run();
  bool DueLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || next_.has_value(); }
  absl::StatusOr<FileDigest> Write(const Part& part);

  FileSystem& files_;
  const CheckpointFolder folder_;
  const uint32_t shard_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Part> next_ ABSL_GUARDED_BY(mutex_);
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ballast
