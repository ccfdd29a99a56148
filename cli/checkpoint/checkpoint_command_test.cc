// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/checkpoint_command.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/coordinator_log.h"
#include "common/storage/file.h"
#include "common/storage/framed_message.h"
#include "common/storage/shard_log.h"
#include "common/storage/snapshot_file.h"
#include "common/tables/placed_table.h"
#include "common/tables/table_spec_fixture.h"
#include "common/tensors/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

// A run directory whose only server has a log of two files.
class CheckpointCommandTest : public ::testing::Test {
 protected:
  CheckpointCommandTest() {
    std::filesystem::remove_all(run_);
    std::filesystem::create_directories(state_);
    const LogDigest digest = Write(1, std::nullopt);
    Write(4, DescribePrevious(1, digest));
  }

  // A header and two records.
  LogDigest Write(uint64_t first, const std::optional<internal::v1::LogHeader::Previous>& previous) {
    internal::v1::ShardRecord header, pause;
    header.mutable_header()->set_format(kLogFormat);
    if (previous.has_value()) *header.mutable_header()->mutable_previous() = *previous;
    pause.mutable_pause()->set_incarnation(1);
    auto writer = RecordWriter::Create(PosixFileSystem(), LogPath(state_, first), first);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const internal::v1::ShardRecord* record : {&header, &pause, &pause}) {
      EXPECT_TRUE((*writer)->Append({FrameMessage(*record)}, first - 1).ok());
    }
    return (*writer)->digest();
  }

  int Verify(const std::string& where) {
    out_.str("");
    err_.str("");
    return CheckpointCommand({"verify", where, "--json"}, out_, err_);
  }

  const std::string run_ = testing::TempDir() + "/run-with-state";
  const std::string state_ = run_ + "/state/shard-0";
  std::ostringstream out_, err_;
};

TEST_F(CheckpointCommandTest, VerifiesALogOfARunThatKeepsNoCheckpoints) {
  for (const std::string& where : {run_, state_}) {
    ASSERT_EQ(Verify(where), 0) << err_.str();
    const nlohmann::json json = nlohmann::json::parse(out_.str());
    EXPECT_EQ(json["ok"], true);
    ASSERT_EQ(json["shards"].size(), 1);
    EXPECT_EQ(json["shards"][0]["path"], state_);
    EXPECT_EQ(json["shards"][0]["log_records"], 4);
    EXPECT_EQ(json["checkpoints"].size(), 0);
  }
}

TEST_F(CheckpointCommandTest, NamesTheFileAndOffsetOfDamageInALog) {
  const std::string path = LogPath(state_, 1);
  std::string bytes = *ReadFile(path);
  bytes[bytes.size() - 10] ^= 1;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  EXPECT_EQ(Verify(run_), 1);
  const nlohmann::json json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["ok"], false);
  EXPECT_THAT(json["shards"][0]["error"].get<std::string>(),
              HasSubstr(absl::StrCat(path, ": has no complete record 3 at offset ")));
  EXPECT_THAT(err_.str(), HasSubstr(path));
}

TEST_F(CheckpointCommandTest, VerifiesTheStatesOfACoordinator) {
  const std::string directory = state_ + "/coordinator";
  ASSERT_TRUE(PosixFileSystem()->MakeFolder(directory).ok());
  internal::v1::CoordinatorState state;
  state.set_job_name("verified");
  auto writer = RecordWriter::Create(PosixFileSystem(), CoordinatorLogPath(directory, 1), 1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (uint64_t synced : {0, 1}) ASSERT_TRUE((*writer)->Append({state.SerializeAsString()}, synced).ok());
  // A mark record contains no state.
  ASSERT_TRUE((*writer)->Append({}, 2).ok());
  ASSERT_EQ(Verify(run_), 0) << err_.str();
  EXPECT_EQ(nlohmann::json::parse(out_.str())["coordinators"][0]["log_records"], 2);
  // The first record was on disk before the second was written.
  const std::string path = CoordinatorLogPath(directory, 1);
  std::string bytes = *ReadFile(path);
  bytes[kRecordHeaderBytes + 3] ^= 1;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  EXPECT_EQ(Verify(run_), 1);
  EXPECT_THAT(nlohmann::json::parse(out_.str())["coordinators"][0]["error"].get<std::string>(), HasSubstr(path));
}

// Commits a checkpoint of one shard, with a table without rows; its file is an increment of the checkpoint before.
void CommitIncrement(CheckpointFolder& folder, uint64_t id) {
  const PlacedTable table = SpreadRanges(SgdTable(1, "rows", 4), 1);
  internal::v1::SnapshotHeader header;
  *header.mutable_declaration()->add_tables() = ToProto(table);
  if (id > 1) {
    const internal::v1::CheckpointManifest before = ReadManifest(folder.ManifestPath(id - 1)).value();
    header.mutable_parent()->set_checkpoint(id - 1);
    header.mutable_parent()->set_bytes(before.files(0).bytes());
    header.mutable_parent()->set_checksum(before.files(0).checksum());
  }
  internal::v1::CheckpointManifest manifest;
  manifest.set_id(id);
  *manifest.mutable_map() = ShardMap(std::vector<std::string>{"server:1"}).ToProto();
  *manifest.mutable_map()->add_tables() = ToProto(table);
  internal::v1::CheckpointManifest::File& file = *manifest.add_files();
  file.set_name(CheckpointFolder::ShardFileName(id, 0, 1));
  ASSERT_TRUE(PosixFileSystem()->MakeFolder(folder.path()).ok());
  auto writer = SnapshotWriter::Create(PosixFileSystem(), folder.PathOf(file.name()), header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Finish().ok());
  const FileDigest digest = DigestFile(folder.PathOf(file.name())).value();
  file.set_bytes(digest.bytes);
  file.set_checksum(digest.checksum);
  ASSERT_TRUE(folder.Commit(manifest).ok());
}

TEST_F(CheckpointCommandTest, VerifiesTheFilesOfEarlierCheckpointsToo) {
  CheckpointFolder folder(PosixFileSystem(), run_ + "/checkpoints");
  for (uint64_t id = 1; id <= 3; ++id) CommitIncrement(folder, id);
  ASSERT_TRUE(folder.Prune(1, 3).ok());
  ASSERT_EQ(Verify(run_), 0) << err_.str();
  const nlohmann::json json = nlohmann::json::parse(out_.str());
  ASSERT_EQ(json["checkpoints"].size(), 1);
  const auto size_of = [&](uint64_t id) {
    return std::filesystem::file_size(folder.PathOf(CheckpointFolder::ShardFileName(id, 0, 1)));
  };
  EXPECT_EQ(json["checkpoints"][0]["bytes"], size_of(3));
  EXPECT_EQ(json["checkpoints"][0]["earlier_bytes"], size_of(1) + size_of(2));
  const std::string path = folder.PathOf(CheckpointFolder::ShardFileName(1, 0, 1));
  std::filesystem::resize_file(path, size_of(1) - 1);
  EXPECT_EQ(Verify(run_), 1);
  EXPECT_THAT(nlohmann::json::parse(out_.str())["checkpoints"][0]["error"].get<std::string>(), HasSubstr(path));
}

TEST_F(CheckpointCommandTest, HelpSaysWhatIsVerified) {
  ASSERT_EQ(CheckpointCommand({"--help"}, out_, err_), 0);
  EXPECT_THAT(out_.str(), HasSubstr("the logs and\nsnapshots in each server's state directory"));
}

}  // namespace
}  // namespace ballast
