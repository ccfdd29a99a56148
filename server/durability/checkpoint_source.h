// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/checkpoint.pb.h"
#include "server/shard/shard_state.h"

namespace ballast {

// Owns an open checkpoint from which a job resumes. Its slices and ranges depend only on the tensors and tables, so any
// number of servers can share them.
// Thread safety: all methods may be called from any thread.
class CheckpointSource {
 public:
  // NOT_FOUND, DATA_LOSS if the manifest is damaged, FAILED_PRECONDITION for a newer format.
  static absl::StatusOr<CheckpointSource> Open(std::string manifest_path);

  const internal::v1::CheckpointManifest& manifest() const { return manifest_; }
  const std::string& path() const { return path_; }

  // Returns the state of the tensors' slices, in any order, and restores the tables, which are new and empty.
  // FAILED_PRECONDITION if the checkpoint has another mode or another model (with the first tensor or table that
  // differs); DATA_LOSS if one of its files is damaged; RESOURCE_EXHAUSTED if there is no memory for the rows.
  absl::StatusOr<Resumption> Load(const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                                  absl::Span<const std::unique_ptr<Table>> tables = {}) const;

 private:
  CheckpointSource(std::string path, internal::v1::CheckpointManifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  std::string path_;
  internal::v1::CheckpointManifest manifest_;
};

}  // namespace ballast
