// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "ballast/internal/v1/checkpoint.pb.h"
#include "common/storage/snapshot_file.h"

namespace ballast {

// A part's place in its chain of files.
struct ChainPlace {
  // The whole file, which has all rows; others have those that changed.
  bool first = true;
  // The file of the checkpoint itself, which alone has the newest state of everything except rows.
  bool last = true;
};

// Checks the chain of files that a file of a checkpoint ends, and passes their parts to the callback, the whole file
// first, until it returns an error. DATA_LOSS, with the file's name, for one that is damaged or missing, or that is not
// the increment of the one before it.
absl::Status ReadCheckpointChain(
    const std::string& manifest_path, const internal::v1::CheckpointManifest::File& file,
    absl::FunctionRef<absl::Status(const internal::v1::SnapshotHeader&, SnapshotPart part, ChainPlace place)> take);

// Sets `increment_of` of a shard's file, which is at `path`, from its header and the manifest of the checkpoint before
// it. `manifest_path` returns the path of a checkpoint's manifest. DATA_LOSS if that checkpoint has another file, or
// none.
absl::Status CompleteChain(uint32_t shard, const std::string& path,
                           absl::FunctionRef<std::string(uint64_t checkpoint)> manifest_path,
                           internal::v1::CheckpointManifest::File& file);

}  // namespace ballast
