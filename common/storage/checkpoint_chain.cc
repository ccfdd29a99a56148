// SPDX-License-Identifier: Apache-2.0
#include "common/storage/checkpoint_chain.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/storage/checkpoint_folder.h"

namespace ballast {
namespace {

using File = internal::v1::CheckpointManifest::File;

std::string TextOf(uint64_t bytes, uint64_t checksum) {
  return absl::StrFormat("%d bytes with checksum %016x", bytes, checksum);
}

// `before`: null for the first file.
absl::Status CheckParent(const std::string& path, const internal::v1::SnapshotHeader& header, const File* before) {
  if (before == nullptr) {
    if (!header.has_parent()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(path, ": is an increment of checkpoint ", header.parent().checkpoint(), ", want a whole file"));
  }
  if (!header.has_parent()) {
    return absl::DataLossError(absl::StrCat(path, ": is whole, want an increment of ", before->name()));
  }
  const internal::v1::SnapshotHeader::Parent& parent = header.parent();
  if (parent.bytes() == before->bytes() && parent.checksum() == before->checksum()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": is an increment of a file of ",
                                          TextOf(parent.bytes(), parent.checksum()), ", want one of ", before->name(),
                                          ", which has ", TextOf(before->bytes(), before->checksum())));
}

}  // namespace

absl::Status ReadCheckpointChain(
    const std::string& manifest_path, const File& file,
    absl::FunctionRef<absl::Status(const internal::v1::SnapshotHeader&, SnapshotPart part, ChainPlace place)> take) {
  std::vector<const File*> chain;
  for (const File& earlier : file.increment_of()) chain.push_back(&earlier);
  chain.push_back(&file);
  for (size_t i = 0; i < chain.size(); ++i) {
    const std::string path = CheckpointFilePath(manifest_path, *chain[i]);
    const ChainPlace place{i == 0, i + 1 == chain.size()};
    if (absl::Status status = CheckFile(path, *chain[i]); !status.ok()) return status;
    const absl::StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::Open(path);
    if (!reader.ok()) return reader.status();
    const internal::v1::SnapshotHeader& header = (*reader)->header();
    if (absl::Status status = CheckParent(path, header, i == 0 ? nullptr : chain[i - 1]); !status.ok()) return status;
    while (true) {
      absl::StatusOr<std::optional<SnapshotPart>> part = (*reader)->Next();
      if (!part.ok()) return part.status();
      if (!part->has_value()) break;
      if (absl::Status status = take(header, **std::move(part), place); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CompleteChain(uint32_t shard, const std::string& path,
                           absl::FunctionRef<std::string(uint64_t checkpoint)> manifest_path, File& file) {
  file.clear_increment_of();
  const absl::StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::Open(path);
  if (!reader.ok()) return reader.status();
  const internal::v1::SnapshotHeader& header = (*reader)->header();
  if (!header.has_parent()) return absl::OkStatus();
  const std::string before_path = manifest_path(header.parent().checkpoint());
  absl::StatusOr<internal::v1::CheckpointManifest> manifest = ReadManifest(before_path);
  if (absl::IsNotFound(manifest.status())) {
    return absl::DataLossError(absl::StrCat(path, ": is an increment of checkpoint ", header.parent().checkpoint(),
                                            ", which has no manifest"));
  }
  if (!manifest.ok()) return manifest.status();
  if (shard >= static_cast<uint32_t>(manifest->files_size())) {
    return absl::DataLossError(absl::StrCat(before_path, ": has no file of shard ", shard));
  }
  File before = manifest->files(shard);
  if (absl::Status status = CheckParent(path, header, &before); !status.ok()) return status;
  file.mutable_increment_of()->Swap(before.mutable_increment_of());
  *file.add_increment_of() = std::move(before);
  return absl::OkStatus();
}

}  // namespace ballast
