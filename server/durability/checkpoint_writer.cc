// SPDX-License-Identifier: Apache-2.0
#include "server/durability/checkpoint_writer.h"

#include <utility>

#include "common/error_reason.h"
#include "server/durability/shard_snapshot.h"

namespace ballast {

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::Begin(uint64_t id, uint32_t shards, ShardCapture capture) {
  if (thread_.joinable()) thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    outcome_.reset();
  }
  thread_ = std::thread([this, id, shards, capture = std::move(capture)]() mutable {
    Outcome outcome{id, Write(id, shards, capture)};
    // What the shard shares with it is the shard's alone again.
    capture = ShardCapture();
    absl::MutexLock lock(&mutex_);
    outcome_ = std::move(outcome);
  });
}

std::optional<CheckpointWriter::Outcome> CheckpointWriter::outcome() const {
  absl::MutexLock lock(&mutex_);
  return outcome_;
}

absl::StatusOr<FileDigest> CheckpointWriter::Write(uint64_t id, uint32_t shards, const ShardCapture& capture) {
  if (folder_.path().empty()) {
    return WithReason(
        v1::ERROR_REASON_NO_STORAGE,
        absl::FailedPreconditionError("has no folder for checkpoints; all servers of a job need --checkpoint_dir"));
  }
  if (absl::Status status = files_.MakeFolder(folder_.path()); !status.ok()) return status;
  const std::string path = folder_.PathOf(CheckpointFolder::ShardFileName(id, shard_, shards));
  if (absl::Status status = files_.Remove(path); !status.ok()) return status;
  absl::Status status = WriteSnapshot(&files_, path, {.shard = shard_, .shards = shards, .position = id}, capture);
  absl::StatusOr<FileDigest> digest = status.ok() ? DigestFile(path) : status;
  if (!digest.ok()) files_.Remove(path).IgnoreError();
  return digest;
}

}  // namespace ballast
