// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_directory.h"

#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/testing/status_matcher.h"
#include "common/storage/file.h"
#include "common/storage/framed_message.h"
#include "common/storage/testing/lossy_file_system.h"
#include "common/storage/testing/slow_file_system.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using Positions = std::vector<uint64_t>;

// A directory that one process after another opens.
class ShardDirectoryTest : public testing::Test {
 protected:
  static std::string NewFolder() {
    static int count = 0;
    return absl::StrCat(testing::TempDir(), "/directory-", ++count);
  }

  std::unique_ptr<ShardDirectory> Open(uint32_t shard = 0, FileSystem* files = nullptr) {
    absl::StatusOr<std::unique_ptr<ShardDirectory>> directory =
        ShardDirectory::Open(path_, shard, files != nullptr ? files : &files_);
    EXPECT_THAT(directory, IsOk());
    return *std::move(directory);
  }

  // A directory and its log.
  struct Opened {
    std::unique_ptr<ShardDirectory> directory;
    std::unique_ptr<RecordWriter> log;
  };
  // Opens the directory, starts a log and then `files` more.
  Opened OpenLog(int files = 0) {
    Opened opened{Open(), nullptr};
    opened.log = Start(*opened.directory);
    for (int i = 0; i < files; ++i) Continue(*opened.directory, opened.log);
    return opened;
  }

  // Reads the log from the start, without its records.
  static absl::StatusOr<LogEnd> ReadEnd(ShardDirectory& directory) {
    return directory.ReadLog(1, [](const LogRecord&) { return absl::OkStatus(); });
  }

  // Reads the log into `read_` and starts a file after it.
  std::unique_ptr<RecordWriter> Start(ShardDirectory& directory) {
    read_.clear();
    const absl::StatusOr<LogEnd> end = directory.ReadLog(1, [this](const LogRecord& record) {
      read_.push_back(record.position);
      return absl::OkStatus();
    });
    EXPECT_THAT(end, IsOk());
    absl::StatusOr<std::unique_ptr<RecordWriter>> log = directory.StartLog("job", *end);
    EXPECT_THAT(log, IsOk());
    return *std::move(log);
  }

  static void Append(RecordWriter& log) {
    internal::v1::ShardRecord record;
    record.mutable_pause()->set_incarnation(1);
    ASSERT_THAT(log.Append({FrameMessage(record)}, 0), IsOk());
  }

  // Appends a record to the file and starts the next one.
  static void Continue(ShardDirectory& directory, std::unique_ptr<RecordWriter>& log) {
    Append(*log);
    ASSERT_TRUE(log->Sync().ok());
    absl::StatusOr<std::unique_ptr<RecordWriter>> next = directory.ContinueLog(*log);
    ASSERT_THAT(next, IsOk());
    log = *std::move(next);
  }

  absl::Status AddSnapshot(ShardDirectory& directory, uint64_t position) {
    return directory.AddSnapshot(position, [&](const std::string& path) {
      std::ofstream(path, std::ios::trunc) << "snapshot";
      return absl::OkStatus();
    });
  }

  Positions Logs() { return *ListLogs(files_, path_); }

  LossyFileSystem files_;
  std::string path_ = NewFolder();
  Positions read_;
};

TEST_F(ShardDirectoryTest, RefusesASecondProcessInAFolder) {
  auto first = Open();
  EXPECT_THAT(
      ShardDirectory::Open(path_, 0, &files_),
      Fails(absl::StatusCode::kFailedPrecondition,
            absl::StrCat("state directory ", path_, " is in use by another process; each server needs its own")));
  first.reset();
  EXPECT_TRUE(ShardDirectory::Open(path_, 0, &files_).ok());
}

TEST_F(ShardDirectoryTest, IsEmptyAtFirst) {
  const auto directory = Open();
  EXPECT_EQ(*directory->NewestSnapshot(), std::nullopt);
  const absl::StatusOr<LogEnd> end =
      directory->ReadLog(1, [](const LogRecord&) { return absl::UnknownError("there is a record"); });
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->newest, std::nullopt);
  EXPECT_EQ(end->next, 1);
}

TEST_F(ShardDirectoryTest, ContinuesTheLogOfAnEarlierProcess) {
  for (const Positions& written : {Positions{}, Positions{2, 4}, Positions{2, 4, 6, 8}}) {
    auto [directory, log] = OpenLog();
    EXPECT_EQ(read_, written);
    Continue(*directory, log);
    Append(*log);
  }
  // Each file begins with a header.
  EXPECT_EQ(Logs(), (Positions{1, 3, 5, 7, 9, 11}));
}

TEST_F(ShardDirectoryTest, CutsAnUnfinishedWriteOff) {
  Append(*Start(*Open()));
  const std::string path = LogPath(path_, 1);
  const std::string whole = *ReadFile(path);
  std::ofstream(path, std::ios::app) << "BALLREC1";
  const absl::StatusOr<LogEnd> end = ReadEnd(*Open());
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->unfinished, 8);
  EXPECT_EQ(end->newest_bytes, whole.size());
  EXPECT_EQ(*ReadFile(path), whole);
}

TEST_F(ShardDirectoryTest, StartsTheLogInPlaceOfAFileWithoutARecord) {
  const auto directory = Open();
  std::ofstream(LogPath(path_, 1)) << "";
  Append(*Start(*directory));
  EXPECT_EQ(Logs(), Positions{1});
}

TEST_F(ShardDirectoryTest, RefusesTheLogOfAnotherShard) {
  Append(*Start(*Open(/*shard=*/0)));
  EXPECT_THAT(ReadEnd(*Open(/*shard=*/1)),
              Fails(absl::StatusCode::kFailedPrecondition, "is the log of shard 0, want shard 1"));
}

TEST_F(ShardDirectoryTest, RemovesWhatAnEarlierProcessDidNotFinish) {
  const auto directory = Open();
  std::ofstream(absl::StrCat(SnapshotPath(path_, 3), ".partial")) << "half";
  std::ofstream(absl::StrCat(LogPath(path_, 4), ".partial")) << "half";
  std::ofstream(LogPath(path_, 5)) << "";
  ASSERT_TRUE(directory->RemovePartial().ok());
  EXPECT_EQ(*files_.List(path_), (std::vector<std::string>{"lock", "log-00000000000000000005"}));
}

TEST_F(ShardDirectoryTest, AddsASnapshotCompletelyOrNotAtAll) {
  const auto directory = Open();
  std::string partial;
  const absl::Status full = directory->AddSnapshot(7, [&](const std::string& path) {
    partial = path;
    std::ofstream(path) << "half";
    return absl::ResourceExhaustedError("full");
  });
  EXPECT_EQ(full, absl::ResourceExhaustedError("full"));
  EXPECT_EQ(*files_.List(path_), std::vector<std::string>{"lock"});
  // A process that died may have left the file.
  std::ofstream(partial) << "half";
  const auto write = [&](const std::string& path) {
    EXPECT_FALSE(ReadFile(path).ok());
    std::ofstream(path) << "whole";
    EXPECT_EQ(*directory->NewestSnapshot(), std::nullopt);
    return absl::OkStatus();
  };
  EXPECT_THAT(directory->AddSnapshot(7, write), IsOk());
  EXPECT_EQ(*directory->NewestSnapshot(), SnapshotPath(path_, 7));
  EXPECT_EQ(*ReadFile(SnapshotPath(path_, 7)), "whole");
  files_.FailRenames();
  EXPECT_FALSE(AddSnapshot(*directory, 8).ok());
  EXPECT_EQ(files_.List(path_)->size(), 2);
}

TEST_F(ShardDirectoryTest, PruneKeepsTheSnapshotAndTheLogAfterIt) {
  // The files begin with the records 1, 3, 5 and 7.
  const std::vector<std::pair<uint64_t, Positions>> cases = {
      {1, {1, 3, 5, 7}}, {2, {3, 5, 7}}, {3, {3, 5, 7}}, {6, {7}}, {8, {7}}};
  for (const auto& [pruned, logs] : cases) {
    SCOPED_TRACE(pruned);
    path_ = NewFolder();
    const auto [directory, log] = OpenLog(3);
    Append(*log);
    for (const uint64_t position : {uint64_t{0}, pruned, uint64_t{9}}) {
      ASSERT_TRUE(AddSnapshot(*directory, position).ok());
    }
    ASSERT_TRUE(directory->Prune(pruned, /*most_spares=*/0).ok());
    EXPECT_EQ(Logs(), logs);
    EXPECT_EQ(*ListSnapshots(files_, path_), (Positions{pruned, 9}));
  }
}

TEST_F(ShardDirectoryTest, PruneRemovesTheFilesOfEarlierProcesses) {
  Append(*OpenLog(1).log);
  const auto [directory, log] = OpenLog(1);
  EXPECT_EQ(Logs(), (Positions{1, 3, 5, 7}));
  ASSERT_TRUE(directory->Prune(6, /*most_spares=*/4).ok());
  EXPECT_EQ(Logs(), (Positions{5, 7})) << "only the spare of this process stays";
}

TEST_F(ShardDirectoryTest, ReusesSparesForNewFiles) {
  auto [directory, log] = OpenLog(4);
  ASSERT_TRUE(AddSnapshot(*directory, 8).ok());
  ASSERT_TRUE(directory->Prune(8, /*most_spares=*/2).ok());
  EXPECT_EQ(Logs(), (Positions{1, 3, 9}));
  for (const Positions& logs : {Positions{1, 9, 11}, Positions{9, 11, 13}, Positions{9, 11, 13, 15}}) {
    Continue(*directory, log);
    EXPECT_EQ(Logs(), logs);
  }
  EXPECT_EQ(files_.reuses(), 2);
}

TEST_F(ShardDirectoryTest, CreatesAFileIfTheSpareCannotBeReused) {
  auto [directory, log] = OpenLog(1);
  ASSERT_TRUE(directory->Prune(2, /*most_spares=*/1).ok());
  ASSERT_TRUE(files_.Remove(LogPath(path_, 1)).ok());
  Continue(*directory, log);
  EXPECT_EQ(Logs(), (Positions{3, 5}));
  EXPECT_EQ(files_.reuses(), 0);
}

TEST_F(ShardDirectoryTest, PruneLeavesASpareAloneWhileItIsReused) {
  SlowFileSystem files;
  const auto directory = Open(0, &files);
  std::unique_ptr<RecordWriter> log = Start(*directory);
  for (int i = 0; i < 2; ++i) Continue(*directory, log);
  ASSERT_TRUE(directory->Prune(4, /*most_spares=*/2).ok());
  files.Block();
  absl::StatusOr<std::unique_ptr<RecordWriter>> next;
  std::thread rotation([&] { next = directory->ContinueLog(*log); });
  files.AwaitBlocked(1);
  // Would wait for the blocked disk if it removed a file.
  EXPECT_TRUE(directory->Prune(4, /*most_spares=*/2).ok());
  files.Release();
  rotation.join();
  EXPECT_THAT(next, IsOk());
  EXPECT_EQ(Logs(), (Positions{1, 5, 6}));
}

TEST_F(ShardDirectoryTest, AFullDiskLeavesTheFinishedFileInUse) {
  auto [directory, log] = OpenLog();
  Append(*log);
  files_.SetFree(10);
  EXPECT_EQ(directory->ContinueLog(*log).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(files_.List(path_)->size(), 2) << "the lock and the log";
  files_.SetFree(1 << 20);
  Continue(*directory, log);
  EXPECT_EQ(Logs(), (Positions{1, 4}));
}

TEST_F(ShardDirectoryTest, ReportsANewFileThatItCannotRemove) {
  const auto [directory, log] = OpenLog();
  Append(*log);
  files_.SetFree(10);
  files_.FailRenames();
  EXPECT_THAT(directory->ContinueLog(*log),
              Fails(absl::StatusCode::kDataLoss, absl::StrCat(LogPath(path_, 3), " cannot be removed durably")));
}

}  // namespace
}  // namespace ballast
