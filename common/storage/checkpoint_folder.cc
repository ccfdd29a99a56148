// SPDX-License-Identifier: Apache-2.0
#include "common/storage/checkpoint_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status/error_reason.h"
#include "common/storage/checkpoint_chain.h"
#include "common/storage/checksum.h"
#include "common/storage/framed_message.h"
#include "common/storage/record_log.h"
#include "common/storage/snapshot_file.h"

namespace ballast {
namespace {

constexpr absl::string_view kPrefix = "checkpoint-";
constexpr absl::string_view kManifest = ".manifest";
constexpr size_t kChunkBytes = size_t{1} << 20;

std::string NameOf(uint64_t id) { return absl::StrFormat("checkpoint-%08d", id); }

// Returns the id in the name of a checkpoint file.
std::optional<uint64_t> IdOf(absl::string_view name) {
  if (!absl::StartsWith(name, kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  uint64_t id = 0;
  const size_t dot = name.find('.');
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), &id)) return std::nullopt;
  return id;
}

}  // namespace

std::string CheckpointFolder::PathOf(absl::string_view file_name) const { return absl::StrCat(path_, "/", file_name); }

std::string CheckpointFolder::ManifestPath(uint64_t id) const { return PathOf(absl::StrCat(NameOf(id), kManifest)); }

std::string CheckpointFolder::ShardFileName(uint64_t id, uint32_t shard, uint32_t shards) {
  return absl::StrFormat("%s.shard-%d-of-%d", NameOf(id), shard, shards);
}

absl::StatusOr<std::vector<std::pair<uint64_t, std::string>>> CheckpointFolder::FilesById() const {
  const absl::StatusOr<std::vector<std::string>> names = files_.List(path_);
  if (!names.ok()) return names.status();
  std::vector<std::pair<uint64_t, std::string>> files;
  for (const std::string& name : *names) {
    if (const std::optional<uint64_t> id = IdOf(name); id.has_value()) files.emplace_back(*id, name);
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::vector<CheckpointFolder::Entry>> CheckpointFolder::List() const {
  const absl::StatusOr<std::vector<std::pair<uint64_t, std::string>>> files = FilesById();
  if (!files.ok()) return files.status();
  std::vector<Entry> entries;
  for (const auto& [id, name] : *files) {
    if (absl::EndsWith(name, kManifest)) entries.push_back({id, PathOf(name)});
  }
  return entries;
}

absl::StatusOr<CheckpointFolder::Entry> CheckpointFolder::Newest() const {
  absl::StatusOr<std::vector<Entry>> entries = List();
  if (!entries.ok()) return entries.status();
  if (entries->empty()) return absl::NotFoundError(absl::StrCat(path_, ": holds no checkpoint"));
  return std::move(entries->back());
}

absl::StatusOr<uint64_t> CheckpointFolder::NextId() const {
  const absl::StatusOr<std::vector<std::pair<uint64_t, std::string>>> files = FilesById();
  if (!files.ok()) return files.status();
  return files->empty() ? 1 : files->back().first + 1;
}

absl::Status CheckpointFolder::CheckPresent(const internal::v1::CheckpointManifest::File& file) const {
  const int fd = open(PathOf(file.name()).c_str(), O_RDONLY | O_CLOEXEC);
  const off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
  if (fd >= 0) close(fd);
  if (bytes >= 0 && static_cast<uint64_t>(bytes) == file.bytes()) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_NO_STORAGE,
                    absl::FailedPreconditionError(absl::StrCat(
                        PathOf(file.name()), ": got ", bytes < 0 ? "no such file" : absl::StrCat(bytes, " bytes"),
                        ", want ", file.bytes(), " bytes; all servers of a job need the same --checkpoint_dir")));
}

absl::Status CheckpointFolder::Commit(internal::v1::CheckpointManifest manifest) {
  const bool tables = !manifest.map().tables().empty();
  bool increment = false;
  uint32_t shard = 0;
  for (internal::v1::CheckpointManifest::File& file : *manifest.mutable_files()) {
    absl::Status status = CheckPresent(file);
    // Only rows have increments.
    if (status.ok() && tables) {
      const auto manifest_path = [this](uint64_t id) { return ManifestPath(id); };
      status = CompleteChain(shard, PathOf(file.name()), manifest_path, file);
    }
    for (const internal::v1::CheckpointManifest::File& earlier : file.increment_of()) {
      if (status.ok()) status = CheckPresent(earlier);
    }
    if (!status.ok()) return status;
    increment = increment || file.increment_of_size() > 0;
    ++shard;
  }
  const std::string path = ManifestPath(manifest.id());
  const std::string partial = absl::StrCat(path, ".partial");
  if (absl::Status status = files_.Remove(partial); !status.ok()) return status;
  manifest.set_format(FormatToWrite(tables, increment));
  absl::StatusOr<std::unique_ptr<RecordWriter>> writer = RecordWriter::Create(&files_, partial, 1);
  if (!writer.ok()) return writer.status();
  absl::Status status = (*writer)->Append({FrameMessage(manifest)}, 0);
  if (status.ok()) status = (*writer)->Sync();
  if (status.ok()) status = files_.Rename(partial, path);
  if (!status.ok()) files_.Remove(partial).IgnoreError();
  return status;
}

absl::Status CheckpointFolder::Prune(uint32_t keep, uint64_t unfinished_below) {
  const absl::StatusOr<std::vector<Entry>> whole = List();
  if (!whole.ok()) return whole.status();
  const size_t first_kept = whole->size() - std::min<size_t>(whole->size(), std::max(keep, 1u));
  std::set<uint64_t> kept;
  std::set<std::string> needed;
  for (size_t i = first_kept; i < whole->size(); ++i) {
    const absl::StatusOr<internal::v1::CheckpointManifest> manifest = ReadManifest((*whole)[i].manifest_path);
    if (!manifest.ok()) return manifest.status();
    kept.insert((*whole)[i].id);
    for (const internal::v1::CheckpointManifest::File& file : manifest->files()) {
      for (const internal::v1::CheckpointManifest::File& earlier : file.increment_of()) needed.insert(earlier.name());
    }
  }
  const absl::StatusOr<std::vector<std::pair<uint64_t, std::string>>> files = FilesById();
  if (!files.ok()) return files.status();
  // Manifests go first: files without a manifest are ignored.
  for (const bool manifests : {true, false}) {
    for (const auto& [id, name] : *files) {
      const bool removed = id < unfinished_below && !kept.contains(id) && !needed.contains(name);
      if (!removed || absl::EndsWith(name, kManifest) != manifests) continue;
      if (absl::Status status = files_.Remove(PathOf(name)); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<internal::v1::CheckpointManifest> ReadManifest(const std::string& path) {
  absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Open(path, 1);
  if (!reader.ok()) return reader.status();
  const absl::StatusOr<std::optional<RecordReader::Record>> record = (*reader)->Next();
  if (!record.ok()) return record.status();
  if (!record->has_value()) return absl::DataLossError(absl::StrCat(path, ": is damaged at offset 0"));
  internal::v1::CheckpointManifest manifest;
  const absl::StatusOr<absl::string_view> behind = ParseFramed((*record)->body, manifest);
  if (!behind.ok()) return absl::DataLossError(absl::StrCat(path, ": ", behind.status().message()));
  if (manifest.format() > kStorageFormat) {
    return WithReason(
        v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
        absl::FailedPreconditionError(absl::StrCat(path, ": got format ", manifest.format(),
                                                   ", written by a newer Ballast, want at most ", kStorageFormat)));
  }
  const absl::StatusOr<std::optional<RecordReader::Record>> more = (*reader)->Next();
  if (!more.ok()) return more.status();
  if (more->has_value() || (*reader)->torn()) {
    return absl::DataLossError(absl::StrCat(path, ": got ", (*reader)->size(), " bytes, want ", (*reader)->end()));
  }
  return manifest;
}

absl::StatusOr<std::vector<std::string>> FindManifests(const std::string& where) {
  const auto is_folder = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored);
  };
  if (!is_folder(where)) return std::vector<std::string>{where};
  const std::string inner = where + "/checkpoints";
  const CheckpointFolder folder(PosixFileSystem(), is_folder(inner) ? inner : where);
  const absl::StatusOr<std::vector<CheckpointFolder::Entry>> entries = folder.List();
  if (!entries.ok()) return entries.status();
  std::vector<std::string> manifests;
  for (const CheckpointFolder::Entry& entry : *entries) manifests.push_back(entry.manifest_path);
  if (manifests.empty()) return absl::NotFoundError(absl::StrCat(folder.path(), ": contains no checkpoint"));
  return manifests;
}

absl::StatusOr<std::string> FindManifest(const std::string& where) {
  absl::StatusOr<std::vector<std::string>> manifests = FindManifests(where);
  if (!manifests.ok()) return manifests.status();
  return std::move(manifests->back());
}

std::string CheckpointFilePath(const std::string& manifest_path, const internal::v1::CheckpointManifest::File& file) {
  const size_t slash = manifest_path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : manifest_path.substr(0, slash + 1);
  // Only the file name is used, so that a manifest cannot refer to files elsewhere.
  return folder + file.name().substr(file.name().rfind('/') + 1);
}

absl::StatusOr<FileDigest> DigestFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  StreamChecksum checksum;
  FileDigest digest;
  std::string chunk(kChunkBytes, '\0');
  while (true) {
    const ssize_t got = read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, path);
    if (got == 0) break;
    checksum.Add(absl::string_view(chunk.data(), got));
    digest.bytes += got;
  }
  digest.checksum = checksum.value();
  return digest;
}

absl::Status CheckFile(const std::string& path, const internal::v1::CheckpointManifest::File& file) {
  const absl::StatusOr<FileDigest> digest = DigestFile(path);
  if (absl::IsNotFound(digest.status())) {
    return absl::DataLossError(absl::StrCat(path, ": is missing from the checkpoint"));
  }
  if (!digest.ok()) return digest.status();
  if (digest->bytes != file.bytes()) {
    return absl::DataLossError(absl::StrCat(path, ": got ", digest->bytes, " bytes, want ", file.bytes()));
  }
  if (digest->checksum == file.checksum()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("%s: is damaged: got checksum %016x, want %016x", path, digest->checksum, file.checksum()));
}

}  // namespace ballast
