// SPDX-License-Identifier: Apache-2.0
// How a shard store behaves if its files are damaged, truncated, missing or from another format.

#include <algorithm>
#include <fstream>
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

// Contents of every file in the directory, with its name.
std::vector<std::pair<std::string, std::string>> Files(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> files;
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem()->List(folder);
  for (const std::string& name : *names) {
    if (name != "lock") files.emplace_back(name, *ReadFile(absl::StrCat(folder, "/", name)));
  }
  return files;
}

// Size of a file without the old records of a reused log file. Spares contain nothing else.
size_t UsedBytes(const std::string& folder, const std::string& name, size_t size) {
  uint64_t first = 0;
  if (!absl::SimpleAtoi(absl::StripPrefix(name, "log-"), &first)) return size;
  const uint64_t snapshot = ListSnapshots(*PosixFileSystem(), folder)->back();
  const std::vector<uint64_t> logs = *ListLogs(*PosixFileSystem(), folder);
  const auto next = std::upper_bound(logs.begin(), logs.end(), first);
  if (next != logs.end() && *next <= snapshot + 1) return 0;
  const auto reader = RecordReader::Open(absl::StrCat(folder, "/", name), first);
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

// A closed log of three files, all of whose records were acknowledged.
void WriteThreeFiles(const std::string& folder, v1::Durability::Mode mode) {
  Process process(folder);
  process.Declare(Job(mode));
  // A file holds about three pushes.
  for (uint64_t i = 1; i <= 8; ++i) ASSERT_TRUE(process.PushDurably(0, i, i - 1, 0.1f * i).ok());
}

void WriteFiles(const std::string& folder, const std::vector<std::pair<std::string, std::string>>& files) {
  for (const auto& [name, bytes] : files) {
    std::ofstream(absl::StrCat(folder, "/", name), std::ios::binary | std::ios::trunc) << bytes;
  }
}

// Offsets of every byte of the record headers and of the body framing, and of some bytes of each body.
std::vector<size_t> PositionsIn(const std::string& folder, const std::string& name, size_t size) {
  uint64_t first = 0;
  EXPECT_TRUE(absl::SimpleAtoi(absl::StripPrefix(name, "log-"), &first));
  const auto reader = RecordReader::Open(absl::StrCat(folder, "/", name), first);
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

TEST(ShardStoreTest, NoFlippedBitInALogLosesARecordSilently) {
  for (const v1::Durability::Mode mode : {v1::Durability::WAL, v1::Durability::WAL_SYNC}) {
    const std::string folder = NewFolder(), copy = NewFolder();
    WriteThreeFiles(folder, mode);
    const std::vector<std::string> whole = *ReadChanges(folder);
    const auto files = Files(folder);
    ASSERT_EQ(files.size(), 3);
    ASSERT_EQ(whole.size(), 9);
    ASSERT_TRUE(PosixFileSystem()->MakeFolder(copy).ok());
    WriteFiles(copy, files);
    size_t refused = 0, harmless = 0;
    for (const auto& [name, bytes] : files) {
      for (size_t at : PositionsIn(folder, name, bytes.size())) {
        std::string flipped = bytes;
        flipped[at] ^= 1 << at % 8;
        WriteFiles(copy, {{name, flipped}});
        const absl::StatusOr<std::vector<std::string>> changes = ReadChanges(copy);
        if (changes.ok()) {
          ++harmless;
          ASSERT_EQ(*changes, whole) << name << ": byte " << at;
          continue;
        }
        ++refused;
        ASSERT_TRUE(absl::StrContains(changes.status().message(), copy)) << changes.status();
        ASSERT_TRUE(absl::StrContains(changes.status().message(), "offset")) << changes.status();
        ASSERT_EQ(changes.status().code(), absl::StatusCode::kDataLoss);
      }
      WriteFiles(copy, {{name, bytes}});
    }
    // The harmless bytes are padding and the last file's mark.
    EXPECT_LT(harmless, 200);
    EXPECT_GT(refused, 900);
  }
}

TEST(ShardStoreTest, OnlyTheNewestFileOfALogMayEndTorn) {
  const std::string folder = NewFolder(), copy = NewFolder();
  WriteThreeFiles(folder, v1::Durability::WAL);
  const std::vector<std::string> whole = *ReadChanges(folder);
  const auto files = Files(folder);
  ASSERT_TRUE(PosixFileSystem()->MakeFolder(copy).ok());
  WriteFiles(copy, files);
  for (size_t i = 0; i < files.size(); ++i) {
    const auto& [name, bytes] = files[i];
    for (size_t size : PositionsIn(folder, name, bytes.size())) {
      WriteFiles(copy, {{name, bytes.substr(0, size)}});
      const absl::StatusOr<std::vector<std::string>> changes = ReadChanges(copy);
      if (i + 1 < files.size()) {
        ASSERT_EQ(changes.status().code(), absl::StatusCode::kDataLoss) << name << ": " << size;
        ASSERT_TRUE(absl::StrContains(changes.status().message(), absl::StrCat(copy, "/", name))) << changes.status();
        ASSERT_TRUE(absl::StrContains(changes.status().message(), "offset")) << changes.status();
        continue;
      }
      ASSERT_TRUE(changes.ok()) << changes.status();
      ASSERT_LE(changes->size(), whole.size());
      ASSERT_TRUE(std::equal(changes->begin(), changes->end(), whole.begin())) << size;
    }
    WriteFiles(copy, {{name, bytes}});
    if (i + 1 == files.size()) continue;
    ASSERT_TRUE(PosixFileSystem()->Remove(absl::StrCat(copy, "/", name)).ok());
    EXPECT_EQ(ReadChanges(copy).status().code(), absl::StatusCode::kDataLoss) << name;
    WriteFiles(copy, {{name, bytes}});
  }
}

TEST(ShardStoreTest, RefusesAFileThatIsNotTheOneThatItsSuccessorTellsOf) {
  const std::string folder = NewFolder(), other = NewFolder();
  WriteThreeFiles(folder, v1::Durability::WAL);
  {
    Process process(other);
    process.Declare(Job(v1::Durability::WAL));
    for (uint64_t i = 1; i <= 8; ++i) ASSERT_TRUE(process.PushDurably(0, i, i - 1, 0.2f * i).ok());
  }
  const auto files = Files(folder), others = Files(other);
  ASSERT_EQ(files[1].first, others[1].first);
  WriteFiles(folder, {others[1]});
  Process process(folder);
  EXPECT_EQ(process.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(process.status.message(), "with checksum")) << process.status;
}

TEST(ShardStoreTest, RefusesALogThatEndsBeforeItsSnapshot) {
  const std::string folder = NewFolder();
  {
    Process process(folder);
    process.Declare(Job(v1::Durability::WAL));
    ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
    ASSERT_TRUE(process.store->TakeSnapshot().ok());
    ASSERT_TRUE(process.Push(0, 2, 1, 1).ok());
  }
  const uint64_t newest = ListLogs(*PosixFileSystem(), folder)->back();
  ASSERT_TRUE(PosixFileSystem()->Remove(LogPath(folder, newest)).ok());
  Process process(folder);
  EXPECT_EQ(process.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(process.status.message(), "snapshot-")) << process.status;
}

TEST(ShardStoreTest, RefusesALogOfFormat1ByName) {
  const std::string folder = NewFolder();
  ASSERT_TRUE(PosixFileSystem()->MakeFolder(folder).ok());
  {
    internal::v1::ShardRecord record;
    record.mutable_header()->set_format(1);
    record.mutable_header()->set_job("job");
    auto writer = RecordWriter::Create(PosixFileSystem(), LogPath(folder, 1), 1);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append({FrameMessage(record)}, 0).ok());
  }
  Process process(folder);
  EXPECT_EQ(process.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(
      absl::StrContains(process.status.message(),
                        absl::StrCat(LogPath(folder, 1), ": is a log of format 1, which only an earlier build")))
      << process.status;
  EXPECT_EQ(Files(folder).size(), 1);
}

TEST(ShardStoreTest, GoesOnBehindAFileThatACrashHasCut) {
  const std::string folder = NewFolder();
  std::string before;
  for (uint64_t life = 0; life < 4; ++life) {
    Process process(folder);
    ASSERT_TRUE(process.status.ok()) << process.status;
    if (life > 0) {
      EXPECT_EQ(process.Fingerprint(), before);
    }
    process.Declare(Job(v1::Durability::WAL));
    for (uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE(process.Push(0, life * 5 + i, 0, 0.1f * i).ok());
    before = process.Fingerprint();
    process.store.reset();
    // The last record is the mark of the synced position.
    const uint64_t newest = ListLogs(*PosixFileSystem(), folder)->back();
    const std::string bytes = *ReadFile(LogPath(folder, newest));
    std::ofstream(LogPath(folder, newest), std::ios::binary | std::ios::trunc) << bytes.substr(0, bytes.size() - 8);
  }
}

TEST(ShardStoreTest, FlippedBitsAndCutFilesAreFoundOrCutOffCleanly) {
  const std::string folder = NewFolder();
  std::vector<std::string> states;
  {
    Process process(folder);
    process.Declare(Job(v1::Durability::WAL_SYNC));
    for (uint64_t i = 1; i <= 12; ++i) {
      ASSERT_TRUE(process.PushDurably(0, i, i - 1, i).ok());
      if (i == 6) {
        ASSERT_TRUE(process.store->TakeSnapshot().ok());
      }
      if (i >= 6) states.push_back(process.Fingerprint());
    }
  }
  const std::vector<std::pair<std::string, std::string>> whole = Files(folder);
  std::vector<size_t> used;
  for (const auto& [name, bytes] : whole) used.push_back(UsedBytes(folder, name, bytes.size()));
  std::mt19937_64 random(3);
  int refused = 0, cut = 0, harmless = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string copy = NewFolder();
    ASSERT_TRUE(PosixFileSystem()->MakeFolder(copy).ok());
    const size_t hit = random() % whole.size(), at = random() % whole[hit].second.size();
    for (size_t i = 0; i < whole.size(); ++i) {
      std::string bytes = whole[i].second;
      if (i == hit && round % 2 == 0) bytes[at] ^= 1 << random() % 8;
      if (i == hit && round % 2 == 1) bytes.resize(at);
      std::ofstream(absl::StrCat(copy, "/", whole[i].first), std::ios::binary) << bytes;
    }
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
