// SPDX-License-Identifier: Apache-2.0
#include "common/storage/record_log.h"

#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/storage/file.h"
#include "common/storage/testing/lossy_file_system.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

std::string NewPath(absl::string_view name) {
  static int count = 0;
  return absl::StrCat(testing::TempDir(), "/", name, "-", ++count);
}

void Overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Bodies of all complete records, and the end of the file.
struct Found {
  std::vector<std::string> bodies;
  absl::Status status;
  bool torn = false;
  uint64_t end = 0;
  uint64_t unfinished = 0;
};

Found ReadAll(const std::string& path, uint64_t first = 1) {
  Found found;
  const auto reader = RecordReader::Open(path, first);
  if (!reader.ok()) return {{}, reader.status()};
  while (true) {
    absl::StatusOr<std::optional<RecordReader::Record>> record = (*reader)->Next();
    found.status = record.status();
    if (!record.ok()) return found;
    if (!record->has_value()) break;
    found.bodies.push_back((*record)->body);
  }
  found.torn = (*reader)->torn();
  found.end = (*reader)->end();
  found.unfinished = (*reader)->unfinished();
  return found;
}

// Reads a log without damage.
Found ReadGood(const std::string& path, uint64_t first = 1) {
  Found found = ReadAll(path, first);
  EXPECT_TRUE(found.status.ok()) << found.status;
  return found;
}

// Writes three records; the third is written with `synced_by_third`.
std::string Written(uint64_t synced_by_third) {
  const std::string path = NewPath("log");
  const auto writer = RecordWriter::Create(PosixFileSystem(), path, 1).value();
  EXPECT_TRUE(writer->Append({"one"}, 0).ok());
  EXPECT_TRUE(writer->Append({"tw", "o, longer than eight"}, 0).ok());
  EXPECT_TRUE(writer->Append({""}, synced_by_third).ok());
  return path;
}

TEST(RecordLogTest, GivesBackWhatWasAppended) {
  const Found found = ReadGood(Written(0));
  EXPECT_EQ(found.bodies, (std::vector<std::string>{"one", "two, longer than eight", ""}));
  EXPECT_FALSE(found.torn);
}

TEST(RecordLogTest, RefusesToWriteOverAFile) {
  const std::string path = Written(0);
  EXPECT_EQ(RecordWriter::Create(PosixFileSystem(), path, 1).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(RecordLogTest, NamesAMissingFile) {
  EXPECT_EQ(ReadAll("no/such/log").status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(ReadAll("no/such/log").status.message(), "no/such/log"));
}

TEST(RecordLogTest, DropsATornEndWhereverItIsCut) {
  const std::string path = Written(3);
  const std::string whole = ReadFile(path).value();
  const std::vector<size_t> ends = {0, 48 + 8, 48 + 8 + 48 + 24, whole.size()};
  for (size_t size = 0; size < whole.size(); ++size) {
    Overwrite(path, whole.substr(0, size));
    const Found found = ReadAll(path);
    ASSERT_TRUE(found.status.ok()) << size << ": " << found.status;
    // Only padding may be missing from a complete record.
    const size_t records = size >= 48 + 8 + 48 + 22 ? 2 : size >= 48 + 3 ? 1 : 0;
    ASSERT_EQ(found.bodies.size(), records) << size;
    EXPECT_EQ(found.torn, size > ends[records]) << size;
  }
}

TEST(RecordLogTest, RefusesDamageBeforeARecordThatWasWrittenWhenItWasOnDisk) {
  const std::string path = Written(2);
  std::string bytes = ReadFile(path).value();
  bytes[48 + 8 + 48 + 3] ^= 1;
  Overwrite(path, bytes);
  const Found found = ReadAll(path);
  EXPECT_EQ(found.status,
            absl::DataLossError(path + ": record 2 at offset 56 does not match its checksum, but record 3 follows"));
  EXPECT_EQ(found.bodies.size(), 1);
}

TEST(RecordLogTest, CutsOffWhatAMachinesDeathLeftHolesIn) {
  // The third record does not know that the second was ever on disk.
  const std::string path = Written(1);
  std::string bytes = ReadFile(path).value();
  bytes.replace(56, 48, std::string(48, '\0'));
  Overwrite(path, bytes);
  const Found found = ReadGood(path);
  EXPECT_EQ(found.bodies.size(), 1);
  EXPECT_TRUE(found.torn);
  EXPECT_EQ(found.end, 56);
}

TEST(RecordLogTest, RefusesAFileThatBeginsElsewhere) {
  const std::string path = NewPath("log");
  ASSERT_TRUE(RecordWriter::Create(PosixFileSystem(), path, 7).value()->Append({"seven"}, 6).ok());
  const Found found = ReadAll(path, 1);
  EXPECT_EQ(found.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(found.status.message(), "at offset 0: got record 7, want record 1"));
}

// Writes records 1 to 3, then reuses the file for records from 4 on.
std::unique_ptr<RecordWriter> Reused(const std::string& path) {
  return RecordWriter::Reuse(PosixFileSystem(), Written(2), path, 4).value();
}

TEST(RecordLogTest, AReusedFileHasOnlyWhatWasWrittenAnew) {
  const std::string path = NewPath("reused");
  const auto writer = Reused(path);
  const size_t old_size = ReadFile(path).value().size();
  EXPECT_EQ(writer->size(), 0);
  Found found = ReadGood(path, 4);
  EXPECT_TRUE(found.bodies.empty());
  // Same length as the record that it overwrites, so the next old record lies where the next new one would.
  ASSERT_TRUE(writer->Append({"six"}, 3).ok());
  EXPECT_EQ(ReadFile(path).value().size(), old_size);
  found = ReadGood(path, 4);
  EXPECT_EQ(found.bodies, std::vector<std::string>{"six"});
  EXPECT_EQ(found.end, 56);
  EXPECT_EQ(found.unfinished, 0);
  // Extends beyond the end of the old file.
  ASSERT_TRUE(writer->Append({std::string(500, 'x')}, 3).ok());
  ASSERT_TRUE(writer->Append({"last"}, 3).ok());
  found = ReadGood(path, 4);
  EXPECT_EQ(found.bodies, (std::vector<std::string>{"six", std::string(500, 'x'), "last"}));
  EXPECT_FALSE(found.torn);
}

TEST(RecordLogTest, OldRecordsBehindATornEndAreNoneOfTheLog) {
  const std::string path = NewPath("reused");
  std::string old = ReadFile(Written(2)).value();
  const auto writer = Reused(path);
  ASSERT_TRUE(writer->Append({"six"}, 3).ok());
  // The zeros were not written: the old second and third records are complete and lie where new ones would.
  old.replace(0, 56, ReadFile(path).value().substr(0, 56));
  Overwrite(path, old);
  const Found found = ReadGood(path, 4);
  EXPECT_EQ(found.bodies, std::vector<std::string>{"six"});
  EXPECT_EQ(found.unfinished, old.size() - 56);
}

TEST(RecordLogTest, FindsDamageInAReusedFile) {
  const std::string path = NewPath("reused");
  const auto writer = Reused(path);
  ASSERT_TRUE(writer->Append({"six"}, 3).ok());
  ASSERT_TRUE(writer->Append({"seven"}, 4).ok());
  const std::string whole = ReadFile(path).value(), old = ReadFile(Written(2)).value();
  for (size_t byte = 0; byte < 48 + 3; ++byte) {
    std::string bytes = whole;
    bytes[byte] ^= 1;
    Overwrite(path, bytes);
    EXPECT_EQ(ReadAll(path, 4).status.code(), absl::StatusCode::kDataLoss) << byte;
  }
  // The disk returned the old record.
  Overwrite(path, old.substr(0, 56) + whole.substr(56));
  const Found found = ReadAll(path, 4);
  EXPECT_EQ(found.status.message(),
            path + ": record 4 at offset 0 is an old record of a reused file, but record 5 follows");
}

TEST(RecordLogTest, ReusesNoFileThatIsNotThereAndOverwritesNone) {
  const std::string path = Written(0);
  EXPECT_EQ(RecordWriter::Reuse(PosixFileSystem(), Written(0), path, 4).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadAll(path).bodies.size(), 3);
  EXPECT_EQ(RecordWriter::Reuse(PosixFileSystem(), "no/such/log", NewPath("reused"), 4).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(RecordLogTest, FindsEveryFlippedBitOfASyncedRecord) {
  const std::string path = Written(2);
  const std::string whole = ReadFile(path).value();
  for (size_t byte = 0; byte < 48 + 8 + 48 + 22; ++byte) {
    const bool padding = byte >= 48 + 3 && byte < 48 + 8;
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[byte] ^= 1 << bit;
      Overwrite(path, bytes);
      const Found found = ReadAll(path);
      EXPECT_EQ(found.status.code(), padding ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss) << byte;
    }
  }
}

TEST(RecordLogTest, AppendsAgainOnceAFullDiskHasRoom) {
  LossyFileSystem files;
  const std::string path = NewPath("full");
  const auto writer = RecordWriter::Create(&files, path, 1).value();
  files.SetFree(100);
  EXPECT_TRUE(writer->Append({"one"}, 0).ok());
  EXPECT_EQ(writer->Append({"two"}, 0).code(), absl::StatusCode::kResourceExhausted);
  files.SetFree(1000);
  EXPECT_TRUE(writer->Append({"three"}, 0).ok());
  EXPECT_EQ(ReadAll(path).bodies, (std::vector<std::string>{"one", "three"}));
}

TEST(RecordLogTest, KeepsWhatWasSyncedWhenAMachineDies) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 400; ++round) {
    LossyFileSystem files;
    const std::string path = NewPath("lossy");
    uint64_t first = 1;
    auto writer = RecordWriter::Create(&files, path, first).value();
    if (round % 2 == 1) {
      // Some rounds use equal lengths, so that old records lie where new ones would.
      for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(writer->Append({std::string(round % 4 == 1 ? random() % 300 : 100, 'A' + i)}, i).ok());
      }
      ASSERT_TRUE(writer->Sync().ok());
      first = 21;
      const std::string old = NewPath("old");
      ASSERT_TRUE(files.Rename(path, old).ok());
      writer = RecordWriter::Reuse(&files, old, path, first).value();
    }
    std::vector<std::string> bodies;
    uint64_t synced = 0;
    for (int i = 0; i < 20; ++i) {
      bodies.push_back(std::string(round % 4 == 3 ? 100 : random() % 300, 'a' + i));
      ASSERT_TRUE(writer->Append({bodies.back()}, first - 1 + synced).ok());
      if (random() % 4 == 0) {
        ASSERT_TRUE(writer->Sync().ok());
        synced = bodies.size();
      }
    }
    ASSERT_TRUE(files.LoseUnsynced(random()).ok());
    const Found found = ReadAll(path, first);
    ASSERT_TRUE(found.status.ok()) << round << ": " << found.status;
    ASSERT_GE(found.bodies.size(), synced) << round;
    bodies.resize(found.bodies.size());
    ASSERT_EQ(found.bodies, bodies) << round;
  }
}

}  // namespace
}  // namespace ballast
