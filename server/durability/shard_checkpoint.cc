// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_fields.h"
#include "common/job/kind_names.h"
#include "common/job/limits.h"
#include "common/status/error_reason.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/snapshot_file.h"
#include "common/tensors/shard_map.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/durability/shard_snapshot.h"

namespace ballast {
namespace {

// The number of steps finished by the furthest worker. All workers resume there (ProgressTracker).
uint64_t MostSteps(const internal::v1::PolicyState& saved) {
  uint64_t most = saved.slowest();
  for (const internal::v1::PolicyState::Clock& clock : saved.clocks()) most = std::max(most, clock.finished());
  return most;
}

internal::v1::PolicyState::Clock ClockAt(uint64_t steps) {
  internal::v1::PolicyState::Clock clock;
  clock.set_finished(steps);
  clock.set_clock(steps);
  return clock;
}

// Returns a slice's policy state between two steps, with no gradients, for a job whose workers or policy differ from
// those of the job that saved it.
PolicyState AtRest(const PolicyState& saved, uint64_t version, uint32_t workers) {
  PolicyState state;
  const uint64_t steps = MostSteps(saved.fields);
  state.fields.set_gathering(version);
  state.fields.set_slowest(steps);
  for (uint32_t rank = 0; rank < workers; ++rank) {
    state.fields.add_arrived(false);
    state.fields.add_paused(false);
    *state.fields.add_clocks() = ClockAt(steps);
  }
  return state;
}

// A resumed job waits for all its workers, including those that had paused when the checkpoint was taken.
void IncludeAllWorkers(PolicyState& state) {
  const uint64_t steps = MostSteps(state.fields);
  for (int rank = 0; rank < state.fields.paused_size(); ++rank) state.fields.set_paused(rank, false);
  if (state.fields.clocks_size() > 0) state.fields.set_slowest(steps);
  for (internal::v1::PolicyState::Clock& clock : *state.fields.mutable_clocks()) clock = ClockAt(steps);
}

// Returns the spec without the fields that depend on the job's length, which may differ in a resumed job.
v1::TensorSpec WithoutJobLength(v1::TensorSpec spec) {
  if (!spec.optimizer().schedule().total_from_job()) return spec;
  v1::Schedule& schedule = *spec.mutable_optimizer()->mutable_schedule();
  if (schedule.has_polynomial()) schedule.mutable_polynomial()->clear_total();
  if (schedule.has_cosine()) schedule.mutable_cosine()->clear_total();
  if (schedule.has_one_cycle()) schedule.mutable_one_cycle()->clear_total();
  return spec;
}

// Returns why a tensor saved as `saved` cannot resume as `now`; empty if it can. A total that follows from the job's
// length is not compared, so the job may have other epochs, workers or batches. A release without total_from_job saved
// only the total.
std::string WhyNotResumed(v1::TensorSpec saved, v1::TensorSpec now) {
  const bool saved_follows = saved.optimizer().schedule().total_from_job();
  if (saved_follows) saved = WithoutJobLength(std::move(saved));
  if (!saved_follows && now.optimizer().schedule().total_from_job()) {
    now.mutable_optimizer()->mutable_schedule()->clear_total_from_job();
  }
  // A job may state a constant that it left out before.
  FillNumbers(saved);
  FillNumbers(now);
  const std::string difference = FirstDifference(WithoutJobLength(now), saved);
  return difference.empty() ? "" : absl::StrCat("tensor ", saved.id(), " \"", saved.name(), "\": ", difference);
}

absl::Status CheckSpecs(const std::string& path, absl::Span<const PlacedTensor> saved,
                        absl::Span<const OwnedTensor> tensors) {
  for (const OwnedTensor& tensor : tensors) {
    const auto same = std::find_if(saved.begin(), saved.end(),
                                   [&](const PlacedTensor& one) { return one.spec.id() == tensor.spec.id(); });
    const std::string why = same == saved.end()
                                ? absl::StrCat("tensor \"", tensor.spec.name(), "\" is not in the checkpoint")
                                : WhyNotResumed(same->spec, tensor.spec);
    if (why.empty()) continue;
    return WithReason(v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
                      absl::FailedPreconditionError(
                          absl::StrCat("cannot resume from ", path, ", a checkpoint of another model: ", why)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointSource> CheckpointSource::Open(std::string manifest_path) {
  absl::StatusOr<internal::v1::CheckpointManifest> manifest = ReadManifest(manifest_path);
  if (!manifest.ok()) return manifest.status();
  return CheckpointSource(std::move(manifest_path), *std::move(manifest));
}

absl::StatusOr<Resumption> CheckpointSource::Load(const JobConfig& job, absl::Span<const OwnedTensor> tensors) const {
  const absl::StatusOr<ShardMap> map = ShardMap::FromProto(manifest_.map());
  if (!map.ok()) return absl::DataLossError(absl::StrCat(path_, ": ", map.status().message()));
  if (absl::Status status = CheckSpecs(path_, map->tensors(), tensors); !status.ok()) return status;
  absl::flat_hash_map<SliceKey, bool> wanted;
  for (const OwnedTensor& tensor : tensors) {
    for (const v1::SliceRange& range : tensor.slices) wanted[{tensor.spec.id(), range.index()}] = false;
  }
  std::set<uint32_t> shards;
  for (const PlacedTensor& tensor : map->tensors()) {
    for (const PlacedSlice& slice : tensor.slices) {
      if (wanted.contains({tensor.spec.id(), slice.index})) shards.insert(slice.shard);
    }
  }
  Resumption resumption;
  std::vector<ShardState::SliceEntry>& slices = resumption.slices;
  for (uint32_t shard : shards) {
    if (shard >= static_cast<uint32_t>(manifest_.files_size())) {
      return absl::DataLossError(absl::StrCat(path_, ": shard ", shard, " has no file in the manifest"));
    }
    const auto take = [&](const internal::v1::SnapshotHeader& header,
                          const SnapshotReader::SliceRecord& slice) -> absl::Status {
      const internal::v1::LoggedDeclaration& saved = header.declaration();
      if (saved.policy().kind_case() != job.policy.kind_case()) {
        return WithReason(
            v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
            absl::FailedPreconditionError(absl::StrCat(
                "cannot resume from ", path_, ": the checkpoint's job was in mode ", KindName(saved.policy()), ", got ",
                KindName(job.policy), ", whose steps are counted differently")));
      }
      const auto found = wanted.find({slice.state.tensor_id(), slice.state.slice_index()});
      if (found == wanted.end() || found->second) return absl::OkStatus();
      found->second = true;
      ShardState::SliceEntry& capture = slices.emplace_back(ToSliceEntry(slice));
      // The job may be longer now; its first push reports its position again.
      capture.weights.position.reset();
      const bool same_terms = saved.workers() == job.workers &&
                              google::protobuf::util::MessageDifferencer::Equals(saved.policy(), job.policy);
      if (same_terms) {
        IncludeAllWorkers(capture.policy);
      } else {
        capture.policy = AtRest(capture.policy, capture.weights.version, job.workers);
      }
      return absl::OkStatus();
    };
    if (absl::Status status = ReadSlices(path_, manifest_.files(shard), take); !status.ok()) return status;
  }
  for (uint64_t incarnation : manifest_.incarnations()) {
    resumption.windows.emplace_back().set_incarnation(incarnation + 1);
  }
  if (slices.size() == wanted.size()) return resumption;
  return absl::DataLossError(
      absl::StrCat(path_, ": got ", slices.size(), " of the ", wanted.size(), " slices that this shard owns"));
}

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
