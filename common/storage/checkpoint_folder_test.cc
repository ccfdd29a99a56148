// SPDX-License-Identifier: Apache-2.0
#include "common/storage/checkpoint_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/storage/file.h"
#include "common/storage/framed_message.h"
#include "common/storage/record_log.h"
#include "common/storage/snapshot_file.h"
#include "common/storage/testing/lossy_file_system.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

std::string NewFolder() {
  static int count = 0;
  const std::string folder = absl::StrCat(testing::TempDir(), "/checkpoints-", ++count);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

// Writes a checkpoint of one shard, except its manifest.
absl::StatusOr<internal::v1::CheckpointManifest> TryPrepare(FileSystem* files, const CheckpointFolder& folder,
                                                            uint64_t id, const std::string& content) {
  const std::string name = CheckpointFolder::ShardFileName(id, 0, 1);
  absl::StatusOr<std::unique_ptr<AppendFile>> file = files->Create(folder.PathOf(name));
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->Append({content});
  if (status.ok()) status = (*file)->Sync();
  const absl::StatusOr<FileDigest> digest = status.ok() ? DigestFile(folder.PathOf(name)) : status;
  if (!digest.ok()) return digest.status();
  internal::v1::CheckpointManifest manifest;
  manifest.set_id(id);
  manifest.mutable_job()->set_name(absl::StrCat("job ", id));
  internal::v1::CheckpointManifest::File* to = manifest.add_files();
  to->set_name(name);
  to->set_bytes(digest->bytes);
  to->set_checksum(digest->checksum);
  return manifest;
}

internal::v1::CheckpointManifest Prepare(const CheckpointFolder& folder, uint64_t id, const std::string& content) {
  return TryPrepare(PosixFileSystem(), folder, id, content).value();
}

TEST(CheckpointFolderTest, OnlyWhatIsCommittedCounts) {
  CheckpointFolder folder(PosixFileSystem(), NewFolder());
  EXPECT_EQ(folder.Newest().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*folder.NextId(), 1);
  const auto manifest = Prepare(folder, 3, "weights");
  EXPECT_TRUE(folder.List()->empty());
  EXPECT_EQ(*folder.NextId(), 4) << "what was begun is not begun again";
  ASSERT_TRUE(folder.Commit(manifest).ok());
  const auto newest = folder.Newest().value();
  EXPECT_EQ(newest.id, 3);
  EXPECT_EQ(ReadManifest(newest.manifest_path)->job().name(), "job 3");
}

TEST(CheckpointFolderTest, AFileThatIsNotThereIsNotCommitted) {
  CheckpointFolder folder(PosixFileSystem(), NewFolder());
  auto manifest = Prepare(folder, 1, "weights");
  manifest.mutable_files(0)->set_name(CheckpointFolder::ShardFileName(1, 1, 2));
  const absl::Status status = folder.Commit(manifest);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "got no such file, want 7 bytes; all servers of a job need the same"))
      << status;
  EXPECT_TRUE(folder.List()->empty());
}

TEST(CheckpointFolderTest, TheNewestAreKept) {
  const std::string path = NewFolder();
  CheckpointFolder folder(PosixFileSystem(), path);
  for (uint64_t id = 1; id <= 4; ++id) {
    const auto manifest = Prepare(folder, id, "weights");
    // The second checkpoint is never committed.
    ASSERT_TRUE(id == 2 || folder.Commit(manifest).ok());
  }
  Prepare(folder, 5, "under way");
  ASSERT_TRUE(folder.Prune(2, 5).ok());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"checkpoint-00000003.manifest", "checkpoint-00000003.shard-0-of-1",
                                             "checkpoint-00000004.manifest", "checkpoint-00000004.shard-0-of-1",
                                             "checkpoint-00000005.shard-0-of-1"}));
}

TEST(CheckpointFolderTest, AFileThatAKeptOneIsAnIncrementOfStaysUntilNoneNeedsIt) {
  const std::string path = NewFolder();
  CheckpointFolder folder(PosixFileSystem(), path);
  const auto names = [&] {
    std::vector<std::string> found = PosixFileSystem()->List(path).value();
    std::sort(found.begin(), found.end());
    return found;
  };
  const auto first = Prepare(folder, 1, "all rows");
  ASSERT_TRUE(folder.Commit(first).ok());
  auto second = Prepare(folder, 2, "some rows");
  *second.mutable_files(0)->add_increment_of() = first.files(0);
  ASSERT_TRUE(folder.Commit(second).ok());
  ASSERT_TRUE(folder.Prune(1, 2).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-00000001.shard-0-of-1", "checkpoint-00000002.manifest",
                                               "checkpoint-00000002.shard-0-of-1"}));
  EXPECT_EQ(*folder.NextId(), 3);
  ASSERT_TRUE(folder.Commit(Prepare(folder, 3, "all rows")).ok());
  ASSERT_TRUE(folder.Prune(1, 3).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-00000003.manifest", "checkpoint-00000003.shard-0-of-1"}));
  Prepare(folder, 2, "some rows");
  const absl::Status status = folder.Commit(second);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "checkpoint-00000001.shard-0-of-1: got no such file")) << status;
}

// Simulates a crash of the machine, or a full disk, after every possible number of bytes.
TEST(CheckpointFolderTest, TheOldOrTheNewOneIsThereWhole) {
  for (uint64_t free = 0; free < 700; ++free) {
    LossyFileSystem files;
    CheckpointFolder folder(&files, NewFolder());
    const auto first = TryPrepare(&files, folder, 1, std::string(100, 'a')).value();
    ASSERT_TRUE(folder.Commit(first).ok());
    files.SetFree(free);
    const auto second = TryPrepare(&files, folder, 2, std::string(200, 'b'));
    const bool committed = second.ok() && folder.Commit(*second).ok();
    ASSERT_TRUE(files.LoseUnsynced(free).ok());
    const auto newest = folder.Newest().value();
    EXPECT_EQ(newest.id, committed ? 2 : 1) << free << " bytes were free";
    const auto manifest = ReadManifest(newest.manifest_path).value();
    EXPECT_TRUE(CheckFile(CheckpointFilePath(newest.manifest_path, manifest.files(0)), manifest.files(0)).ok());
  }
}

TEST(CheckpointFolderTest, EveryFlippedBitAndEveryCutIsFound) {
  CheckpointFolder folder(PosixFileSystem(), NewFolder());
  const auto prepared = Prepare(folder, 1, std::string(300, 'w'));
  ASSERT_TRUE(folder.Commit(prepared).ok());
  const std::string manifest_path = folder.ManifestPath(1);
  const std::string file_path = CheckpointFilePath(manifest_path, prepared.files(0));
  const std::string saved = ReadManifest(manifest_path)->SerializeAsString();
  const auto whole = [&] {
    const auto manifest = ReadManifest(manifest_path);
    return manifest.ok() && CheckFile(file_path, manifest->files(0)).ok();
  };
  // Damage after the manifest's record may go unnoticed, because those bytes mean nothing.
  const auto wrongly_accepted = [&] { return whole() && ReadManifest(manifest_path)->SerializeAsString() != saved; };
  ASSERT_TRUE(whole());
  std::mt19937_64 random(1);
  int found = 0;
  for (const std::string& path : {manifest_path, file_path}) {
    const std::string good = *ReadFile(path);
    for (int i = 0; i < 500; ++i) {
      std::string bad = good;
      if (i % 2 == 0) {
        bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
      } else {
        bad.resize(random() % bad.size());
      }
      std::ofstream(path, std::ios::binary | std::ios::trunc) << bad;
      EXPECT_FALSE(path == file_path ? whole() : wrongly_accepted()) << path << ", change " << i;
      found += whole() ? 0 : 1;
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << good;
  }
  EXPECT_TRUE(whole());
  EXPECT_GE(found, 900);
}

TEST(CheckpointFolderTest, ANewerFormatIsRefused) {
  CheckpointFolder folder(PosixFileSystem(), NewFolder());
  internal::v1::CheckpointManifest manifest;
  manifest.set_format(kStorageFormat + 1);
  const auto writer = RecordWriter::Create(PosixFileSystem(), folder.ManifestPath(1), 1).value();
  ASSERT_TRUE(writer->Append({FrameMessage(manifest)}, 0).ok());
  const absl::Status status = ReadManifest(folder.ManifestPath(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "got format 5, written by a newer Ballast, want at most 4"))
      << status;
}

TEST(CheckpointFolderTest, NoManifestIsNotFound) {
  EXPECT_EQ(ReadManifest(NewFolder() + "/checkpoint-00000001.manifest").status().code(), absl::StatusCode::kNotFound);
}

TEST(CheckpointFolderTest, AFilesNameLeadsNowhereElse) {
  internal::v1::CheckpointManifest::File file;
  file.set_name("../../secret");
  EXPECT_EQ(CheckpointFilePath("/state/checkpoint-00000001.manifest", file), "/state/secret");
}

}  // namespace
}  // namespace ballast
