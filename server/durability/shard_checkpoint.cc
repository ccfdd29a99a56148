// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_checkpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/concurrency/named_thread.h"
#include "common/status/error_reason.h"
#include "server/durability/shard_snapshot.h"

namespace ballast {

CheckpointWriter::CheckpointWriter(FileSystem* files, std::string folder, uint32_t shard)
    : files_(*files),
      folder_(files, std::move(folder)),
      shard_(shard),
      thread_(NamedThread("checkpoints", [this] { Run(); })) {}

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

CheckpointWriter::Written CheckpointWriter::written() const {
  absl::MutexLock lock(&mutex_);
  return written_;
}

uint64_t CheckpointWriter::Parent() const {
  const Written last = written();
  const bool whole_is_due = last.increments >= kMaxIncrements || last.increment_bytes > last.whole_bytes / 2;
  if (!last.tables || whole_is_due) return 0;
  const absl::StatusOr<internal::v1::CheckpointManifest> manifest = ReadManifest(folder_.ManifestPath(last.id));
  if (!manifest.ok() || shard_ >= static_cast<uint32_t>(manifest->files_size())) return 0;
  const internal::v1::CheckpointManifest::File& file = manifest->files(shard_);
  const bool committed = file.bytes() == last.digest.bytes && file.checksum() == last.digest.checksum;
  return committed ? last.id : 0;
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

absl::StatusOr<SnapshotPlace> CheckpointWriter::PlaceOf(const Part& part, const Written& before) const {
  SnapshotPlace place;
  place.shard = shard_;
  place.shards = part.shards;
  place.position = part.id;
  const uint64_t since = part.capture.since_checkpoint;
  if (since == 0) return place;
  if (before.id != since) {
    return absl::InternalError(absl::StrCat("part ", part.id, " of shard ", shard_, " has the changes since part ",
                                            since, ", want those since ", before.id, ", the last that was written"));
  }
  internal::v1::SnapshotHeader::Parent& parent = place.parent.emplace();
  parent.set_checkpoint(before.id);
  parent.set_bytes(before.digest.bytes);
  parent.set_checksum(before.digest.checksum);
  return place;
}

absl::StatusOr<FileDigest> CheckpointWriter::Write(const Part& part) {
  if (folder_.path().empty()) {
    return WithReason(
        v1::ERROR_REASON_NO_STORAGE,
        absl::FailedPreconditionError("has no checkpoint directory; all servers of a job need --checkpoint_dir"));
  }
  if (part.capture.job.name.empty()) {
    return WithReason(v1::ERROR_REASON_NO_JOB,
                      absl::FailedPreconditionError("no tensor or table has been declared on it yet"));
  }
  if (absl::Status status = files_.MakeFolder(folder_.path()); !status.ok()) return status;
  const std::string path = folder_.PathOf(CheckpointFolder::ShardFileName(part.id, shard_, part.shards));
  if (absl::Status status = files_.Remove(path); !status.ok()) return status;
  const Written before = written();
  const absl::StatusOr<SnapshotPlace> place = PlaceOf(part, before);
  if (!place.ok()) return place.status();
  absl::Status status = WriteSnapshot(&files_, path, *place, part.capture);
  // Verified first, because a digest would also match a damaged file.
  if (status.ok()) status = VerifySnapshot(path, *place, part.capture);
  absl::StatusOr<FileDigest> digest = status.ok() ? DigestFile(path) : status;
  if (!digest.ok()) {
    files_.Remove(path).IgnoreError();
    return digest;
  }
  Written now;
  now.id = part.id;
  now.digest = *digest;
  now.whole_bytes = digest->bytes;
  now.tables = !part.capture.tables.empty();
  if (place->parent.has_value()) {
    now.whole_bytes = before.whole_bytes;
    now.increment_bytes = before.increment_bytes + digest->bytes;
    now.increments = before.increments + 1;
  }
  absl::MutexLock lock(&mutex_);
  written_ = now;
  return digest;
}

}  // namespace ballast
