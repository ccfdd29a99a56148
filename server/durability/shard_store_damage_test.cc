// SPDX-License-Identifier: Apache-2.0
// Tests of a shard store whose files are damaged, truncated, missing or from another format.

#include <algorithm>
#include <fstream>
#include <optional>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/storage/file.h"
#include "common/storage/framed_message.h"
#include "common/storage/shard_log.h"
#include "gtest/gtest.h"
#include "server/durability/shard_store_fixture.h"

namespace ballast {
namespace {

// Names and contents of a directory's files.
using Contents = std::vector<std::pair<std::string, std::string>>;

Contents Files(const std::string& folder) {
  Contents files;
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem()->List(folder);
  for (const std::string& name : *names) {
    if (name != "lock") files.emplace_back(name, *ReadFile(absl::StrCat(folder, "/", name)));
  }
  return files;
}

void WriteFiles(const std::string& folder, const Contents& files) {
  ASSERT_THAT(PosixFileSystem()->MakeFolder(folder), IsOk());
  for (const auto& [name, bytes] : files) {
    std::ofstream(absl::StrCat(folder, "/", name), std::ios::binary | std::ios::trunc) << bytes;
  }
}

// Position of a log file's first record; nothing for other files.
std::optional<uint64_t> FirstOf(absl::string_view name) {
  uint64_t first = 0;
  return absl::SimpleAtoi(absl::StripPrefix(name, "log-"), &first) ? std::optional(first) : std::nullopt;
}

// Size of a file without the old records of a reused log file. Spares contain nothing else.
size_t UsedBytes(const std::string& folder, const std::string& name, size_t size) {
  const std::optional<uint64_t> first = FirstOf(name);
  if (!first.has_value()) return size;
  const uint64_t snapshot = ListSnapshots(*PosixFileSystem(), folder)->back();
  const std::vector<uint64_t> logs = *ListLogs(*PosixFileSystem(), folder);
  const auto next = std::upper_bound(logs.begin(), logs.end(), *first);
  if (next != logs.end() && *next <= snapshot + 1) return 0;
  const auto reader = RecordReader::Open(absl::StrCat(folder, "/", name), *first);
  while ((*reader)->Next()->has_value()) {
  }
  return (*reader)->end();
}

// Every change in a directory's log, in order, or the error that prevents reading it.
absl::StatusOr<std::vector<std::string>> ReadChanges(const std::string& folder) {
  std::vector<std::string> changes;
  const auto take = [&](const LogRecord& record) {
    changes.push_back(absl::StrCat(record.position, record.change.SerializeAsString(), record.behind));
    return absl::OkStatus();
  };
  const absl::StatusOr<LogEnd> end = ReadShardLog(*PosixFileSystem(), folder, 1, 0, take);
  if (!end.ok()) return end.status();
  return changes;
}

// A closed log of three files, all of whose records were acknowledged, and a copy for damage.
struct ThreeFiles {
  explicit ThreeFiles(v1::Durability::Mode mode, float gradient = 0.1f) {
    {
      Process process(folder);
      process.Declare(Job(mode));
      // A file holds about three pushes.
      for (uint64_t i = 1; i <= 8; ++i) EXPECT_THAT(process.PushDurably(0, i, i - 1, gradient * i), IsOk());
    }
    whole = *ReadChanges(folder);
    files = Files(folder);
    EXPECT_EQ(files.size(), 3);
    EXPECT_EQ(whole.size(), 9);
    WriteFiles(copy, files);
  }

  const std::string folder = NewFolder(), copy = NewFolder();
  std::vector<std::string> whole;
  Contents files;
};

// Offsets of every byte of the record headers and of the body framing, and of some bytes of each body.
std::vector<size_t> PositionsIn(const std::string& folder, const std::string& name, size_t size) {
  const auto reader = RecordReader::Open(absl::StrCat(folder, "/", name), FirstOf(name).value());
  std::set<size_t> positions = {size - 1};
  while (true) {
    const auto record = (*reader)->Next();
    if (!record.ok() || !record->has_value()) break;
    for (size_t i = 0; i < 80; ++i) positions.insert((*record)->offset + i);
  }
  for (size_t at = 0; at < size; at += 61) positions.insert(at);
  positions.erase(positions.lower_bound(size), positions.end());
  return {positions.begin(), positions.end()};
}

TEST_F(ShardStoreTest, NoFlippedBitInALogLosesARecordSilently) {
  for (const v1::Durability::Mode mode : {v1::Durability::WAL, v1::Durability::WAL_SYNC}) {
    const ThreeFiles log(mode);
    size_t refused = 0, harmless = 0;
    for (const auto& [name, bytes] : log.files) {
      for (size_t at : PositionsIn(log.folder, name, bytes.size())) {
        std::string flipped = bytes;
        flipped[at] ^= 1 << at % 8;
        WriteFiles(log.copy, {{name, flipped}});
        const absl::StatusOr<std::vector<std::string>> changes = ReadChanges(log.copy);
        ++(changes.ok() ? harmless : refused);
        if (changes.ok()) {
          ASSERT_EQ(*changes, log.whole) << name << ": byte " << at;
        } else {
          ASSERT_THAT(changes, Fails(absl::StatusCode::kDataLoss, log.copy));
          ASSERT_THAT(changes, Fails(absl::StatusCode::kDataLoss, "offset"));
        }
      }
      WriteFiles(log.copy, {{name, bytes}});
    }
    // The harmless bytes are padding and the last file's mark.
    EXPECT_LT(harmless, 200);
    EXPECT_GT(refused, 900);
  }
}

TEST_F(ShardStoreTest, OnlyTheNewestFileOfALogMayEndTorn) {
  const ThreeFiles log(v1::Durability::WAL);
  for (const auto& [name, bytes] : log.files) {
    const bool newest = name == log.files.back().first;
    for (size_t size : PositionsIn(log.folder, name, bytes.size())) {
      WriteFiles(log.copy, {{name, bytes.substr(0, size)}});
      const absl::StatusOr<std::vector<std::string>> changes = ReadChanges(log.copy);
      if (newest) {
        ASSERT_TRUE(changes.ok()) << changes.status();
        ASSERT_LE(changes->size(), log.whole.size());
        ASSERT_TRUE(std::equal(changes->begin(), changes->end(), log.whole.begin())) << size;
      } else {
        ASSERT_THAT(changes, Fails(absl::StatusCode::kDataLoss, absl::StrCat(log.copy, "/", name))) << size;
        ASSERT_THAT(changes, Fails(absl::StatusCode::kDataLoss, "offset"));
      }
    }
    if (!newest) {
      ASSERT_TRUE(PosixFileSystem()->Remove(absl::StrCat(log.copy, "/", name)).ok());
      EXPECT_EQ(ReadChanges(log.copy).status().code(), absl::StatusCode::kDataLoss) << name;
    }
    WriteFiles(log.copy, {{name, bytes}});
  }
}

TEST_F(ShardStoreTest, RefusesAFileThatIsNotTheOneThatItsSuccessorTellsOf) {
  const ThreeFiles log(v1::Durability::WAL), other(v1::Durability::WAL, 0.2f);
  ASSERT_EQ(log.files[1].first, other.files[1].first);
  WriteFiles(log.folder, {other.files[1]});
  EXPECT_THAT(Process(log.folder).status, Fails(absl::StatusCode::kDataLoss, "with checksum"));
}

TEST_F(ShardStoreTest, RefusesALogThatEndsBeforeItsSnapshot) {
  ASSERT_NO_FATAL_FAILURE(StartJob().PushSteps(1, 1));
  ASSERT_TRUE(process_->store->TakeSnapshot().ok());
  ASSERT_NO_FATAL_FAILURE(process_->PushSteps(2, 2));
  process_.reset();
  const uint64_t newest = ListLogs(*PosixFileSystem(), folder_)->back();
  ASSERT_TRUE(PosixFileSystem()->Remove(LogPath(folder_, newest)).ok());
  EXPECT_THAT(Process(folder_).status, Fails(absl::StatusCode::kDataLoss, "snapshot-"));
}

TEST_F(ShardStoreTest, RefusesALogOfFormat1ByName) {
  ASSERT_TRUE(PosixFileSystem()->MakeFolder(folder_).ok());
  {
    internal::v1::ShardRecord record;
    record.mutable_header()->set_format(1);
    record.mutable_header()->set_job("job");
    auto writer = RecordWriter::Create(PosixFileSystem(), LogPath(folder_, 1), 1);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append({FrameMessage(record)}, 0).ok());
  }
  EXPECT_THAT(Process(folder_).status,
              Fails(absl::StatusCode::kFailedPrecondition,
                    absl::StrCat(LogPath(folder_, 1), ": is a log of format 1, which only an earlier build")));
  EXPECT_EQ(Files(folder_).size(), 1);
}

TEST_F(ShardStoreTest, GoesOnBehindAFileThatACrashHasCut) {
  std::string before = Process(NewFolder()).Fingerprint();
  for (uint64_t life = 0; life < 4; ++life) {
    Process& process = ExpectRecovers(before);
    process.Declare(Job());
    for (uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE(process.Push(0, life * 5 + i, 0, 0.1f * i).ok());
    before = End();
    // The last record is the mark of the synced position.
    const uint64_t newest = ListLogs(*PosixFileSystem(), folder_)->back();
    const std::string bytes = *ReadFile(LogPath(folder_, newest));
    std::ofstream(LogPath(folder_, newest), std::ios::binary | std::ios::trunc) << bytes.substr(0, bytes.size() - 8);
  }
}

TEST_F(ShardStoreTest, FlippedBitsAndCutFilesAreFoundOrCutOffCleanly) {
  StartJob(Job(v1::Durability::WAL_SYNC));
  std::vector<std::string> states;
  for (uint64_t i = 1; i <= 12; ++i) {
    ASSERT_TRUE(process_->PushDurably(0, i, i - 1, i).ok());
    if (i == 6) {
      ASSERT_TRUE(process_->store->TakeSnapshot().ok());
    }
    if (i >= 6) states.push_back(process_->Fingerprint());
  }
  process_.reset();
  const Contents whole = Files(folder_);
  std::vector<size_t> used;
  for (const auto& [name, bytes] : whole) used.push_back(UsedBytes(folder_, name, bytes.size()));
  std::mt19937_64 random(3);
  int refused = 0, cut = 0, harmless = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string copy = NewFolder();
    const size_t hit = random() % whole.size(), at = random() % whole[hit].second.size();
    Contents damaged = whole;
    if (round % 2 == 0) damaged[hit].second[at] ^= 1 << random() % 8;
    if (round % 2 == 1) damaged[hit].second.resize(at);
    WriteFiles(copy, damaged);
    Process process(copy);
    if (at >= used[hit]) {
      ASSERT_TRUE(process.status.ok()) << process.status;
      EXPECT_EQ(process.Fingerprint(), states.back());
      continue;
    }
    if (!process.status.ok()) {
      ++refused;
      EXPECT_TRUE(absl::StrContains(process.status.message(), copy)) << process.status;
      continue;
    }
    const auto state = std::find(states.begin(), states.end(), process.Fingerprint());
    ASSERT_NE(state, states.end()) << "round " << round << ": loaded a state that the shard never had";
    ++(state + 1 == states.end() ? harmless : cut);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(cut, 0);
  // The harmless bytes are padding and the end of the last file.
  EXPECT_LT(harmless, 40);
}

}  // namespace
}  // namespace ballast
