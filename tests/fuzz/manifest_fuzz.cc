// SPDX-License-Identifier: Apache-2.0
// A checkpoint's manifest: a choice, then the file itself or its records' bodies. It is refused, or its files lie
// next to it and its map, if valid, can be written.
#include "common/storage/checkpoint_folder.h"
#include "common/storage/framed_message.h"
#include "common/storage/snapshot_file.h"
#include "common/tensors/shard_map.h"
#include "tests/fuzz/fuzz_files.h"

namespace ballast {
namespace {

internal::v1::CheckpointManifest Manifest() {
  v1::TensorSpec spec;
  spec.set_id(1);
  spec.set_name("w");
  spec.add_shape(3);
  spec.mutable_optimizer()->mutable_momentum()->set_learning_rate(1);
  ShardMap map(std::vector<std::string>{"a:1", "b:2"});
  Require(map.Place({&spec, 1}).ok(), "a map accepts a tensor");
  internal::v1::CheckpointManifest manifest;
  manifest.set_format(kStorageFormat);
  manifest.set_id(7);
  manifest.set_version("0.1");
  manifest.mutable_job()->set_name("job");
  *manifest.mutable_map() = map.ToProto();
  for (uint32_t shard = 0; shard < 2; ++shard) {
    internal::v1::CheckpointManifest::File& file = *manifest.add_files();
    file.set_name(CheckpointFolder::ShardFileName(7, shard, 2));
    file.set_bytes(100);
    file.set_checksum(0x0123456789abcdef);
    internal::v1::CheckpointManifest::File& earlier = *file.add_increment_of();
    earlier.set_name(CheckpointFolder::ShardFileName(6, shard, 2));
    earlier.set_bytes(200);
  }
  manifest.mutable_progress()->set_examples(1);
  manifest.add_incarnations(3);
  manifest.set_seconds(1.5);
  return manifest;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string body = FrameMessage(Manifest());
  StringFileSystem files;
  auto writer = RecordWriter::Create(&files, "manifest", 1);
  Require(writer.ok() && (*writer)->Append({body}, 0).ok(), "a manifest can be written to a string");
  return {std::string(1, '\0') + files.content(), std::string(1, '\1') + AsInput(body)};
}

void FuzzOne(FuzzInput input) {
  static InputFile file(".manifest");
  file.Put(input.Byte() % 2 == 0 ? std::string(input.Rest().data(), input.Rest().size()) : RecordsOf(input, 1));
  const auto manifest = ReadManifest(file.path());
  if (!manifest.ok()) {
    Require(absl::IsDataLoss(manifest.status()) || absl::IsFailedPrecondition(manifest.status()),
            "an error tells whether the file is damaged or newer");
    return;
  }
  const auto map = ShardMap::FromProto(manifest->map());
  if (map.ok()) Require(ShardMap::FromProto(map->ToProto()).ok(), "a map that was read can be written");
  const std::string folder = file.path().substr(0, file.path().rfind('/') + 1);
  const auto lies_next_to_it = [&](const internal::v1::CheckpointManifest::File& of) {
    const std::string path = CheckpointFilePath(file.path(), of);
    Require(path.rfind(folder, 0) == 0 && path.find('/', folder.size()) == std::string::npos,
            "a manifest's files lie next to it");
  };
  for (const internal::v1::CheckpointManifest::File& of : manifest->files()) {
    lies_next_to_it(of);
    for (const internal::v1::CheckpointManifest::File& earlier : of.increment_of()) lies_next_to_it(earlier);
  }
}

}  // namespace ballast
