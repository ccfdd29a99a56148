// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/internal/v1/checkpoint.pb.h"
#include "common/storage/file_system.h"
#include "common/storage/snapshot_file.h"

namespace ballast {

// A folder of checkpoints, which all servers of a job see. Of a checkpoint the shards' files are written first, the
// manifest last: one without a manifest was never finished and counts for nothing.
// Thread safety: all methods may be called from any thread; one process commits and prunes.
class CheckpointFolder {
 public:
  struct Entry {
    uint64_t id = 0;
    std::string manifest_path;
  };

  // The folder need not be there; files must outlive this.
  CheckpointFolder(FileSystem* files, std::string path) : files_(*files), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string ManifestPath(uint64_t id) const;
  // "checkpoint-00000012.shard-0-of-2".
  static std::string ShardFileName(uint64_t id, uint32_t shard, uint32_t shards);
  std::string PathOf(absl::string_view file_name) const;

  // Those with a manifest, ascending.
  absl::StatusOr<std::vector<Entry>> List() const;

  // The newest; NOT_FOUND where there is none.
  absl::StatusOr<Entry> Newest() const;

  // Above all that were ever begun and are still there.
  absl::StatusOr<uint64_t> NextId() const;

  // Makes a checkpoint count, once its files are all there as the manifest says; FAILED_PRECONDITION where they are
  // not. It is there whole or not at all, whenever the machine dies.
  absl::Status Commit(internal::v1::CheckpointManifest manifest);

  // Removes all whole checkpoints but the newest `keep`, and what is left of unfinished ones below `unfinished_below`.
  absl::Status Prune(uint32_t keep, uint64_t unfinished_below);

  // Removes what there is of one that was not committed.
  absl::Status Discard(uint64_t id);

 private:
  absl::StatusOr<std::vector<std::pair<uint64_t, std::string>>> FilesById() const;

  FileSystem& files_;
  const std::string path_;
};

// A checkpoint's manifest. NOT_FOUND, DATA_LOSS where it is damaged, FAILED_PRECONDITION for a newer format.
absl::StatusOr<internal::v1::CheckpointManifest> ReadManifest(const std::string& path);

// Of the file that the shard's slices are in; the manifest's folder and its name.
std::string CheckpointFilePath(const std::string& manifest_path, const internal::v1::CheckpointManifest::File& file);

// A file's length and the XXH3 of it.
struct FileDigest {
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};
absl::StatusOr<FileDigest> DigestFile(const std::string& path);

// Whether a file is as the manifest says: DATA_LOSS with got and want where it is not.
absl::Status CheckFile(const std::string& path, const internal::v1::CheckpointManifest::File& file);

// Checks one of a checkpoint's files and hands over its slices, one after another, until one is refused.
absl::Status ReadSlices(
    const std::string& manifest_path, const internal::v1::CheckpointManifest::File& file,
    absl::FunctionRef<absl::Status(const internal::v1::SnapshotHeader&, const SnapshotReader::SliceRecord&)> take);

}  // namespace ballast
