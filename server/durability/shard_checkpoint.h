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
#include "server/durability/shard_snapshot.h"
#include "server/shard/shard_state.h"

namespace ballast {

// Owns a thread that writes a shard's part of checkpoints, one at a time, while the shard keeps working, and knows the
// chain of parts that end with the last one. Invariant: it holds at most two captured shards, the one being written and
// the newest one waiting. Thread safety: all methods may be called from any thread.
class CheckpointWriter {
 public:
  // A part that is whole is due once the increments since the last one are longer than half of it, or this many.
  static constexpr int kMaxIncrements = 16;

  // Result of the part that was begun last.
  struct Outcome {
    uint64_t id = 0;
    absl::StatusOr<FileDigest> digest;
  };

  // `files` must outlive this. The directory is created with the first checkpoint; if `folder` is empty, every part
  // fails.
  CheckpointWriter(FileSystem* files, std::string folder, uint32_t shard);
  // Blocks until the part being written is done.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;

  // Returns the checkpoint of the last part that was written, if it was committed and the next part may be an increment
  // of it; otherwise 0. Reads the manifest, which is the commit.
  uint64_t Parent() const;

  // Starts to write `capture` as this shard's part of checkpoint `id`, after the part being written; never blocks.
  // Drops a part that is still waiting, because the coordinator has abandoned its checkpoint.
  void Begin(uint64_t id, uint32_t shards, ShardState capture);

  // Not set until the part begun last has failed, or was written and verified by reading it back.
  std::optional<Outcome> outcome() const;

 private:
  struct Part {
    uint64_t id = 0;
    uint32_t shards = 0;
    ShardState capture;
  };
  // The last part that was written, and the lengths of the parts that are needed with it.
  struct Written {
    uint64_t id = 0;
    FileDigest digest;
    uint64_t whole_bytes = 0, increment_bytes = 0;
    int increments = 0;
    // Nothing else has increments.
    bool tables = false;
  };

  void Run();
  bool DueLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || next_.has_value(); }
  absl::StatusOr<FileDigest> Write(const Part& part);
  // `before`: the last part that was written.
  absl::StatusOr<SnapshotPlace> PlaceOf(const Part& part, const Written& before) const;
  Written written() const;

  FileSystem& files_;
  const CheckpointFolder folder_;
  const uint32_t shard_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Part> next_ ABSL_GUARDED_BY(mutex_);
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mutex_);
  Written written_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ballast
