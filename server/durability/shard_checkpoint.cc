// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_checkpoint.h"

#include <utility>

#include "common/status/error_reason.h"
#include "server/durability/shard_snapshot.h"

namespace ballast {

CheckpointWriter::CheckpointWriter(FileSystem* files, std::string folder, uint32_t shard)
    : files_(*files), folder_(files, std::move(folder)), shard_(shard), thread_([this] { Run(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void CheckpointWriter::Begin(uint64_t id, uint32_t shards, ShardState capture) {
  // Swapped, so that a replaced part is destroyed outside the lock.
  std::optional<Part> next = Part{id, shards, std::move(capture)};
  absl::MutexLock lock(&mutex_);
  outcome_.reset();
  std::swap(next_, next);
}

std::optional<CheckpointWriter::Outcome> CheckpointWriter::outcome() const {
  absl::MutexLock lock(&mutex_);
  return outcome_;
}

void CheckpointWriter::Run() {
  while (true) {
    std::optional<Part> part;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &CheckpointWriter::DueLocked));
      if (stopping_) return;
      std::swap(part, next_);
    }
    Outcome outcome{part->id, Write(*part)};
    // Releases the state, so that the shard no longer has to copy before it updates.
    part.reset();
    absl::MutexLock lock(&mutex_);
    if (!next_.has_value()) outcome_ = std::move(outcome);
  }
}

absl::StatusOr<FileDigest> CheckpointWriter::Write(const Part& part) {
  if (folder_.path().empty()) {
    return WithReason(
        v1::ERROR_REASON_NO_STORAGE,
        absl::FailedPreconditionError("has no checkpoint directory; all servers of a job need --checkpoint_dir"));
  }
  if (absl::Status status = files_.MakeFolder(folder_.path()); !status.ok()) return status;
  const std::string path = folder_.PathOf(CheckpointFolder::ShardFileName(part.id, shard_, part.shards));
  if (absl::Status status = files_.Remove(path); !status.ok()) return status;
  const SnapshotPlace place{.shard = shard_, .shards = part.shards, .position = part.id};
  absl::Status status = WriteSnapshot(&files_, path, place, part.capture);
  // Verified first, because a digest would also match a damaged file.
  if (status.ok()) status = VerifySnapshot(path, place, part.capture);
  absl::StatusOr<FileDigest> digest = status.ok() ? DigestFile(path) : status;
  if (!digest.ok()) files_.Remove(path).IgnoreError();
  return digest;
}

}  // namespace ballast
