// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/internal/v1/checkpoint.pb.h"
#include "common/storage/file_system.h"

namespace ballast {

// Owns a directory of checkpoints that all servers of a job share. The shards' files of a checkpoint are written
// first and its manifest last, so a checkpoint without a manifest is incomplete and ignored. A file may be an increment
// of files of earlier checkpoints, which stay as long as a manifest names them. Thread safety: all methods may be
// called from any thread; only one process commits and prunes.
class CheckpointFolder {
 public:
  struct Entry {
    uint64_t id = 0;
    std::string manifest_path;
  };

  // The directory need not exist; `files` must outlive this object.
  CheckpointFolder(FileSystem* files, std::string path) : files_(*files), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string ManifestPath(uint64_t id) const;
  // Returns "checkpoint-00000012.shard-0-of-2".
  static std::string ShardFileName(uint64_t id, uint32_t shard, uint32_t shards);
  std::string PathOf(absl::string_view file_name) const;

  // Returns complete checkpoints (those with a manifest), ascending by id.
  absl::StatusOr<std::vector<Entry>> List() const;

  // NOT_FOUND if there is none.
  absl::StatusOr<Entry> Newest() const;

  // Returns an id above all checkpoints in the directory, complete or not.
  absl::StatusOr<uint64_t> NextId() const;

  // Commits a checkpoint; atomic even in a crash. Adds the files that its files are increments of, as their headers
  // say. FAILED_PRECONDITION if the files are not as the manifest says, DATA_LOSS if one is not the increment of a
  // committed file.
  absl::Status Commit(internal::v1::CheckpointManifest manifest);

  // Removes all complete checkpoints except the newest `keep`, and incomplete ones with ids below `unfinished_below`.
  // Keeps the files that the newest ones need. If a manifest of these cannot be read, removes nothing.
  absl::Status Prune(uint32_t keep, uint64_t unfinished_below);

 private:
  absl::Status CheckPresent(const internal::v1::CheckpointManifest::File& file) const;
  absl::StatusOr<std::vector<std::pair<uint64_t, std::string>>> FilesById() const;

  FileSystem& files_;
  const std::string path_;
};

// Reads a manifest. NOT_FOUND if missing, DATA_LOSS if damaged, FAILED_PRECONDITION for a newer format.
absl::StatusOr<internal::v1::CheckpointManifest> ReadManifest(const std::string& path);

// Returns the paths of the manifests in `where`, ascending: a run directory, a checkpoint directory, or a manifest
// itself. NOT_FOUND if a directory contains no checkpoint; any other path is returned unchecked.
absl::StatusOr<std::vector<std::string>> FindManifests(const std::string& where);
// Returns that of the newest checkpoint.
absl::StatusOr<std::string> FindManifest(const std::string& where);

// Returns the path of a shard's file: the file's name in the manifest's directory.
std::string CheckpointFilePath(const std::string& manifest_path, const internal::v1::CheckpointManifest::File& file);

// Length of a file, and its 64-bit XXH3 checksum.
struct FileDigest {
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};
absl::StatusOr<FileDigest> DigestFile(const std::string& path);

// Checks a file against the manifest: DATA_LOSS, with got and want, if they differ.
absl::Status CheckFile(const std::string& path, const internal::v1::CheckpointManifest::File& file);

}  // namespace ballast
