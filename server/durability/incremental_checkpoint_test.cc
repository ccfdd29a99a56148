// SPDX-License-Identifier: Apache-2.0
// Tests of checkpoints whose parts have only the rows that changed since an earlier one.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/framed_message.h"
#include "common/storage/record_log.h"
#include "common/storage/snapshot_file.h"
#include "common/tensors/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/durability/checkpoint_source.h"
#include "server/durability/shard_checkpoint.h"
#include "server/durability/shard_store_fixture.h"
#include "server/durability/table_store_fixture.h"

namespace ballast {
namespace {

using internal::v1::CheckpointManifest;
using internal::v1::SnapshotHeader;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Images by hash.
using Rows = std::map<uint64_t, std::string>;

JobConfig CheckpointJob() { return Job(v1::Durability::CHECKPOINT, 1); }

// A shard's part of the table.
struct Part {
  Part(uint32_t rank, uint32_t shards) : tables(1) {
    tables[0] = Table::Make(PartOf(rank, shards), {}, &memory).value();
  }

  Rows rows() const {
    Rows rows;
    const auto capture = tables[0]->BeginCapture();
    while (const std::optional<RowsPiece> piece = capture->Next()) {
      const char* const words = reinterpret_cast<const char*>(piece->rows.words.data());
      for (size_t i = 0; i < piece->rows.hashes.size(); ++i) {
        rows[piece->rows.hashes[i]] = std::string(words + i * capture->row_bytes(), capture->row_bytes());
      }
    }
    return rows;
  }

  ByteBudget budget{uint64_t{1} << 30};
  TableMemory memory{&budget};
  std::vector<std::unique_ptr<Table>> tables;
};

CheckpointWriter::Outcome Await(const CheckpointWriter& writer) {
  while (true) {
    if (auto outcome = writer.outcome(); outcome.has_value()) return *outcome;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

CheckpointManifest ManifestOf(uint64_t id, uint32_t shards) {
  CheckpointManifest manifest;
  manifest.set_id(id);
  manifest.add_incarnations(1);
  *manifest.mutable_map() = ShardMap(std::vector<std::string>(shards, "server:1")).ToProto();
  *manifest.mutable_map()->add_tables() = ToProto(SpreadRanges(PartOf(0, 1).spec, shards));
  return manifest;
}

void AddFile(uint64_t id, const absl::StatusOr<FileDigest>& digest, CheckpointManifest& manifest) {
  ASSERT_THAT(digest, IsOk());
  const uint32_t shards = manifest.map().shards_size();
  CheckpointManifest::File& file = *manifest.add_files();
  file.set_name(CheckpointFolder::ShardFileName(id, manifest.files_size() - 1, shards));
  file.set_bytes(digest->bytes);
  file.set_checksum(digest->checksum);
}

// Two shards, whose rows the test sets and removes, and their checkpoints.
class IncrementalCheckpointTest : public testing::Test {
 protected:
  static constexpr uint32_t kShards = 2;
  static constexpr uint64_t kIds = 4000;

  IncrementalCheckpointTest() {
    std::filesystem::remove_all(folder_.path());
    for (uint32_t rank = 0; rank < kShards; ++rank) Restart(rank);
  }

  // A new writer, which knows nothing of the parts before it.
  void Restart(uint32_t rank) {
    if (rank < writers_.size()) {
      writers_[rank] = std::make_unique<CheckpointWriter>(PosixFileSystem(), folder_.path(), rank);
      return;
    }
    parts_.push_back(std::make_unique<Part>(rank, kShards));
    writers_.push_back(std::make_unique<CheckpointWriter>(PosixFileSystem(), folder_.path(), rank));
  }

  // Sets `set` rows and removes `removed` rows, of random ids.
  void Change(int set, int removed) {
    const PlacedTable placed = SpreadRanges(PartOf(0, 1).spec, kShards);
    std::vector<std::set<uint64_t>> to_remove(kShards), to_set(kShards);
    for (int i = 0; i < set + removed; ++i) {
      const uint64_t hash = RowHash(random_() % kIds, kTable);
      (i < set ? to_set : to_remove)[placed.OwnerOf(RangeOf(hash, 12))].insert(hash);
    }
    for (uint32_t rank = 0; rank < kShards; ++rank) {
      Table& table = *parts_[rank]->tables[0];
      std::string images(to_set[rank].size() * table.image_bytes(), '\0');
      for (char& byte : images) byte = static_cast<char>(random_());
      const std::vector<uint64_t> gone(to_remove[rank].begin(), to_remove[rank].end());
      const std::vector<uint64_t> there(to_set[rank].begin(), to_set[rank].end());
      ASSERT_THAT(table.RestoreChanges(gone, there, images), IsOk());
    }
  }

  Rows Now() const {
    Rows rows;
    for (const auto& part : parts_) rows.merge(part->rows());
    return rows;
  }

  // Writes the parts of the next checkpoint; the rows change meanwhile.
  CheckpointManifest Write() {
    CheckpointManifest manifest = ManifestOf(++id_, kShards);
    for (uint32_t rank = 0; rank < kShards; ++rank) {
      Table& table = *parts_[rank]->tables[0];
      const uint64_t since = writers_[rank]->Parent();
      ShardState capture;
      capture.job = CheckpointJob();
      capture.tables = {table.owned()};
      capture.since_checkpoint = table.ChangedSince(since).has_value() ? since : 0;
      capture.table_entries.push_back(
          {kTable, table.state(), table.BeginCheckpoint(id_, capture.since_checkpoint > 0)});
      writers_[rank]->Begin(id_, kShards, std::move(capture));
    }
    Change(30, 10);
    for (uint32_t rank = 0; rank < kShards; ++rank) AddFile(id_, Await(*writers_[rank]).digest, manifest);
    return manifest;
  }

  // Takes a checkpoint and keeps what it has to have.
  void Save() {
    want_[id_ + 1] = Now();
    ASSERT_THAT(folder_.Commit(Write()), IsOk());
  }

  // Loads a checkpoint on that many servers.
  absl::StatusOr<Rows> Load(uint64_t id, uint32_t servers) const {
    const absl::StatusOr<CheckpointSource> source = CheckpointSource::Open(folder_.ManifestPath(id));
    if (!source.ok()) return source.status();
    Rows rows;
    for (uint32_t rank = 0; rank < servers; ++rank) {
      Part part(rank, servers);
      const absl::StatusOr<Resumption> loaded = source->Load(CheckpointJob(), {}, part.tables);
      if (!loaded.ok()) return loaded.status();
      rows.merge(part.rows());
    }
    return rows;
  }

  // Number of files that the shard's part needs besides its own.
  uint64_t Increments(uint64_t id, uint32_t rank = 0) const {
    return ReadManifest(folder_.ManifestPath(id)).value().files(rank).increment_of_size();
  }

  std::string PathOf(uint64_t id, uint32_t rank = 0) const {
    return folder_.PathOf(CheckpointFolder::ShardFileName(id, rank, kShards));
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names = PosixFileSystem()->List(folder_.path()).value();
    std::sort(names.begin(), names.end());
    return names;
  }

  std::mt19937_64 random_{3};
  CheckpointFolder folder_{PosixFileSystem(), testing::TempDir() + "/incremental-checkpoints"};
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<std::unique_ptr<CheckpointWriter>> writers_;
  uint64_t id_ = 0;
  // The rows at the moment of each checkpoint.
  std::map<uint64_t, Rows> want_;
};

TEST_F(IncrementalCheckpointTest, EachOneOfAChainHasTheRowsOfItsMomentForAnyNumberOfServers) {
  Change(3000, 0);
  for (int i = 0; i < 5; ++i) {
    Save();
    Change(100, 60);
  }
  for (uint64_t id = 1; id <= 5; ++id) {
    EXPECT_EQ(Increments(id), id - 1);
    for (uint32_t servers : {1u, 2u, 4u}) {
      const absl::StatusOr<Rows> rows = Load(id, servers);
      ASSERT_THAT(rows, IsOk());
      EXPECT_TRUE(*rows == want_[id]) << "checkpoint " << id << " on " << servers << " servers";
    }
  }
}

TEST_F(IncrementalCheckpointTest, OnlyTheFilesOfIncrementsHaveTheNewFormat) {
  Change(3000, 0);
  Save();
  Change(10, 10);
  Save();
  const auto format = [&](uint64_t id) { return SnapshotReader::Open(PathOf(id)).value()->header().format(); };
  EXPECT_EQ(format(1), 3u);
  EXPECT_EQ(format(2), 4u);
  EXPECT_EQ(ReadManifest(folder_.ManifestPath(1))->format(), 3u);
  EXPECT_EQ(ReadManifest(folder_.ManifestPath(2))->format(), 4u);
  const SnapshotHeader::Parent parent = SnapshotReader::Open(PathOf(2)).value()->header().parent();
  EXPECT_EQ(parent.checkpoint(), 1u);
  EXPECT_EQ(parent.checksum(), ReadManifest(folder_.ManifestPath(1))->files(0).checksum());
}

TEST_F(IncrementalCheckpointTest, AnAbandonedOneIsFollowedByAWholeOne) {
  Change(3000, 0);
  Save();
  Change(100, 50);
  // Every shard has written its part, but the coordinator never commits.
  Write();
  Change(100, 50);
  Save();
  Change(100, 50);
  Save();
  EXPECT_EQ(Increments(3), 0u);
  EXPECT_EQ(Increments(4), 1u);
  for (uint64_t id : {1, 3, 4}) EXPECT_TRUE(Load(id, 1).value() == want_[id]) << id;
}

TEST_F(IncrementalCheckpointTest, AWriterThatIsNewBeginsWithAWholePart) {
  Change(3000, 0);
  Save();
  Change(100, 50);
  Restart(1);
  Save();
  EXPECT_EQ(Increments(2, 0), 1u);
  EXPECT_EQ(Increments(2, 1), 0u);
  EXPECT_TRUE(Load(2, 4).value() == want_[2]);
}

TEST_F(IncrementalCheckpointTest, AWholeOneIsDueWhenTheIncrementsAreLongerThanHalfOfTheLast) {
  Change(3000, 0);
  Save();
  uint64_t increments = 0;
  uint64_t id = 2;
  for (; id < 30; ++id) {
    Change(200, 0);
    Save();
    if (Increments(id) == 0) break;
    increments += std::filesystem::file_size(PathOf(id));
  }
  const uint64_t whole = std::filesystem::file_size(PathOf(1));
  EXPECT_GT(increments, whole / 2);
  EXPECT_LT(increments - std::filesystem::file_size(PathOf(id - 1)), whole / 2);
  EXPECT_LE(id, 16u);
  EXPECT_TRUE(Load(id, 1).value() == want_[id]);
}

TEST_F(IncrementalCheckpointTest, AWholeOneIsDueAfterTheMostIncrements) {
  Change(4000, 0);
  for (uint64_t id = 1; id <= CheckpointWriter::kMaxIncrements + 2; ++id) {
    Save();
    EXPECT_EQ(Increments(id), (id - 1) % (CheckpointWriter::kMaxIncrements + 1)) << id;
  }
  const uint64_t last = CheckpointWriter::kMaxIncrements + 1;
  EXPECT_TRUE(Load(last, 1).value() == want_[last]);
}

TEST_F(IncrementalCheckpointTest, DamageAndLossOfAnyFileOfTheChainAreNamed) {
  Change(3000, 0);
  for (int i = 0; i < 3; ++i) Save();
  for (uint64_t id : {1, 2, 3}) {
    const std::string path = PathOf(id);
    std::filesystem::copy_file(path, path + ".good");
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(std::filesystem::file_size(path) / 2);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at).put(byte);
    file.close();
    EXPECT_THAT(Load(3, 1).status(), Fails(absl::StatusCode::kDataLoss, absl::StrCat(path, ": is damaged")));
    std::filesystem::remove(path);
    EXPECT_THAT(Load(3, 1).status(), Fails(absl::StatusCode::kDataLoss, absl::StrCat(path, ": is missing")));
    std::filesystem::rename(path + ".good", path);
  }
  EXPECT_THAT(Load(3, 1), IsOk());
}

// Writes a manifest as it is.
void WriteManifest(const std::string& path, const CheckpointManifest& manifest) {
  std::filesystem::remove(path);
  auto writer = RecordWriter::Create(PosixFileSystem(), path, 1);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->Append({FrameMessage(manifest)}, 0), IsOk());
}

TEST_F(IncrementalCheckpointTest, AChainInAnotherOrderOrWithoutAFileIsRefused) {
  Change(3000, 0);
  for (int i = 0; i < 4; ++i) Save();
  const CheckpointManifest good = ReadManifest(folder_.ManifestPath(4)).value();
  const auto refusal = [&](const CheckpointManifest& bad) {
    WriteManifest(folder_.ManifestPath(4), bad);
    return Load(4, 1).status();
  };
  CheckpointManifest bad = good;
  bad.mutable_files(0)->mutable_increment_of()->SwapElements(1, 2);
  EXPECT_THAT(refusal(bad), Fails(absl::StatusCode::kDataLoss, absl::StrCat(PathOf(3), ": is an increment of")));
  bad = good;
  bad.mutable_files(0)->mutable_increment_of()->DeleteSubrange(2, 1);
  EXPECT_THAT(refusal(bad), Fails(absl::StatusCode::kDataLoss, absl::StrCat(PathOf(4), ": is an increment of")));
  bad.mutable_files(0)->clear_increment_of();
  EXPECT_THAT(refusal(bad), Fails(absl::StatusCode::kDataLoss,
                                  absl::StrCat(PathOf(4), ": is an increment of checkpoint 3, want a whole file")));
  bad = good;
  *bad.mutable_files(0)->mutable_increment_of(1) = bad.files(0).increment_of(0);
  EXPECT_THAT(refusal(bad), Fails(absl::StatusCode::kDataLoss, absl::StrCat(PathOf(1), ": is whole, want an")));
  EXPECT_THAT(refusal(good), IsOk());
}

TEST_F(IncrementalCheckpointTest, AnIncrementOfAFileThatIsNotCommittedIsNotCommitted) {
  Change(3000, 0);
  Save();
  Change(10, 10);
  const CheckpointManifest manifest = Write();
  std::filesystem::rename(folder_.ManifestPath(1), folder_.ManifestPath(1) + ".away");
  EXPECT_THAT(folder_.Commit(manifest),
              Fails(absl::StatusCode::kDataLoss,
                    absl::StrCat(PathOf(2), ": is an increment of checkpoint 1, which has no manifest")));
  std::filesystem::rename(folder_.ManifestPath(1) + ".away", folder_.ManifestPath(1));
  // The same name, with other rows.
  CheckpointManifest other = ReadManifest(folder_.ManifestPath(1)).value();
  other.mutable_files(0)->set_checksum(7);
  WriteManifest(folder_.ManifestPath(1), other);
  EXPECT_THAT(folder_.Commit(manifest),
              Fails(absl::StatusCode::kDataLoss, absl::StrCat(PathOf(2), ": is an increment of a file of")));
  EXPECT_FALSE(std::filesystem::exists(folder_.ManifestPath(2)));
}

TEST_F(IncrementalCheckpointTest, WhatAKeptOneNeedsStaysAndTheRestGoes) {
  Change(3000, 0);
  for (int i = 0; i < 3; ++i) Save();
  ASSERT_THAT(folder_.Prune(1, 3), IsOk());
  EXPECT_THAT(Files(), ElementsAre("checkpoint-00000001.shard-0-of-2", "checkpoint-00000001.shard-1-of-2",
                                   "checkpoint-00000002.shard-0-of-2", "checkpoint-00000002.shard-1-of-2",
                                   "checkpoint-00000003.manifest", "checkpoint-00000003.shard-0-of-2",
                                   "checkpoint-00000003.shard-1-of-2"));
  EXPECT_TRUE(Load(3, 2).value() == want_[3]);
  // The next one of shard 1 is whole, so of the old files only those of shard 0 are needed.
  Restart(1);
  Save();
  ASSERT_THAT(folder_.Prune(1, 4), IsOk());
  EXPECT_THAT(Files(), ElementsAre("checkpoint-00000001.shard-0-of-2", "checkpoint-00000002.shard-0-of-2",
                                   "checkpoint-00000003.shard-0-of-2", "checkpoint-00000004.manifest",
                                   "checkpoint-00000004.shard-0-of-2", "checkpoint-00000004.shard-1-of-2"));
  EXPECT_TRUE(Load(4, 1).value() == want_[4]);
  Restart(0);
  Restart(1);
  Save();
  ASSERT_THAT(folder_.Prune(1, 5), IsOk());
  EXPECT_THAT(Files(), ElementsAre("checkpoint-00000005.manifest", "checkpoint-00000005.shard-0-of-2",
                                   "checkpoint-00000005.shard-1-of-2"));
  EXPECT_TRUE(Load(5, 1).value() == want_[5]);
}

TEST_F(IncrementalCheckpointTest, AKeptManifestThatCannotBeReadKeepsEverything) {
  Change(3000, 0);
  for (int i = 0; i < 3; ++i) Save();
  const std::vector<std::string> files = Files();
  std::filesystem::resize_file(folder_.ManifestPath(2), 20);
  EXPECT_FALSE(folder_.Prune(2, 3).ok());
  EXPECT_EQ(Files(), files);
}

// The length of an increment follows from the number of rows that changed.
TEST_F(IncrementalCheckpointTest, TakesBytesForTheRowsThatChangedAlone) {
  Change(20000, 0);
  Save();
  const uint64_t image_bytes = parts_[0]->tables[0]->image_bytes() + sizeof(uint64_t);
  // Each Save changes 30 rows and removes 10 while it writes.
  for (int changed : {0, 40, 400}) {
    Change(changed, 0);
    Save();
    uint64_t bytes = 0;
    for (uint32_t rank = 0; rank < kShards; ++rank) bytes += std::filesystem::file_size(PathOf(id_, rank));
    const uint64_t rows = changed + 30 + 10;
    EXPECT_LE(bytes, rows * image_bytes + 10000) << changed;
    EXPECT_GE(bytes, rows * image_bytes / 2) << changed;
  }
}

// A whole shard with a table, as a server has it.
class IncrementsOfAShardTest : public testing::Test {
 protected:
  IncrementsOfAShardTest() {
    std::filesystem::remove_all(folder_.path());
    EXPECT_THAT(shard_.Declare(CheckpointJob(), {Tensor(1, "w", 30)}, {PartOf(0, 1)}), IsOk());
  }

  void Push(uint64_t ids) { ASSERT_THAT(PushRows(shard_, ids, 0.5f, ++sequence_), IsOk()); }

  // Takes a checkpoint as ShardHost does; returns the one that it is an increment of, or 0.
  uint64_t Save(uint64_t id) {
    ShardState capture = shard_.CaptureCheckpoint(id, writer_.Parent());
    const uint64_t since = capture.since_checkpoint;
    writer_.Begin(id, 1, std::move(capture));
    CheckpointManifest manifest = ManifestOf(id, 1);
    AddFile(id, Await(writer_).digest, manifest);
    EXPECT_TRUE(manifest_.ParseFromString(manifest.SerializeAsString()));
    return since;
  }
  void Commit() {
    ShardMap map(std::vector<std::string>{"server:1"});
    ASSERT_THAT(map.Place(std::vector<v1::TensorSpec>{Tensor(1, "w", 30).spec}), IsOk());
    const auto tables = manifest_.map().tables();
    *manifest_.mutable_map() = map.ToProto();
    *manifest_.mutable_map()->mutable_tables() = tables;
    ASSERT_THAT(folder_.Commit(manifest_), IsOk());
  }

  std::map<uint64_t, std::string> Resume(uint64_t id) {
    ParameterShard::Options options = Options();
    options.resume_from = folder_.ManifestPath(id);
    options.load_checkpoint = [](const std::string& path, const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                                 absl::Span<const std::unique_ptr<Table>> tables) {
      return CheckpointSource::Open(path)->Load(job, tensors, tables);
    };
    ParameterShard shard(std::move(options), Clock::Real());
    EXPECT_THAT(shard.Declare(CheckpointJob(), {Tensor(1, "w", 30)}, {PartOf(0, 1)}), IsOk());
    return RowsOf(shard);
  }

  CheckpointFolder folder_{PosixFileSystem(), testing::TempDir() + "/increments-of-a-shard"};
  static ParameterShard::Options Options() {
    ParameterShard::Options options;
    options.keeps_checkpoints = true;
    return options;
  }
  ParameterShard shard_{Options(), Clock::Real()};
  CheckpointWriter writer_{PosixFileSystem(), folder_.path(), 0};
  CheckpointManifest manifest_;
  uint64_t sequence_ = 0;
};

TEST_F(IncrementsOfAShardTest, FollowACommittedPartAlone) {
  Push(1000);
  EXPECT_EQ(Save(1), 0u);
  Commit();
  Push(100);
  EXPECT_EQ(Save(2), 1u);
  Push(50);
  EXPECT_EQ(Save(3), 0u) << "the second one was not committed";
  Commit();
  Push(80);
  EXPECT_EQ(Save(4), 3u);
  Commit();
  EXPECT_EQ(Resume(4), RowsOf(shard_));
}

TEST_F(IncrementsOfAShardTest, FollowTheCaptureOfThatPartAlone) {
  Push(1000);
  Save(1);
  Commit();
  Push(100);
  // Captured for a checkpoint whose part was never begun.
  shard_.CaptureCheckpoint(2, writer_.Parent());
  EXPECT_EQ(Save(3), 0u);
}

TEST_F(IncrementsOfAShardTest, AreNotForTablesOfWhichMostChanged) {
  Push(1000);
  Save(1);
  Commit();
  Push(501);
  EXPECT_EQ(Save(2), 0u);
  Commit();
  Push(500);
  EXPECT_EQ(Save(3), 2u);
}

TEST_F(IncrementsOfAShardTest, KeepTheTensorsWhole) {
  Push(1000);
  Save(1);
  Commit();
  const std::vector<float> gradient(30, 1.0f);
  const absl::string_view payload = BytesOf(gradient);
  const GradientView view{{1, 0}, 0, v1::ENCODING_FP32, {&payload, 1}};
  ASSERT_THAT(shard_.Push("job", {0, 1, ++sequence_, 1, 1, std::nullopt}, {&view, 1}), IsOk());
  EXPECT_EQ(Save(2), 1u);
  Commit();
  const auto source = CheckpointSource::Open(folder_.ManifestPath(2));
  ASSERT_THAT(source, IsOk());
  Part part(0, 1);
  OwnedTensor tensor = Tensor(1, "w", 30);
  tensor.slices.emplace_back().set_elements(30);
  const absl::StatusOr<Resumption> loaded = source->Load(CheckpointJob(), {tensor}, part.tables);
  ASSERT_THAT(loaded, IsOk());
  ASSERT_EQ(loaded->slices.size(), 1u);
  EXPECT_EQ(loaded->slices[0].weights.version, 1u);
}

TEST_F(IncrementsOfAShardTest, LoseNoPushThatComesMeanwhile) {
  Push(3000);
  Save(1);
  Commit();
  std::thread pushes([this] {
    std::mt19937 random(4);
    for (int i = 0; i < 300; ++i) Push(1 + random() % 200);
  });
  for (uint64_t id = 2; id <= 6; ++id) {
    EXPECT_EQ(Save(id), id - 1);
    Commit();
  }
  pushes.join();
  EXPECT_EQ(Save(7), 6u);
  Commit();
  EXPECT_EQ(Resume(7), RowsOf(shard_));
}

TEST_F(IncrementsOfAShardTest, EndWithANewTable) {
  Push(1000);
  Save(1);
  Commit();
  OwnedTable other = PartOf(0, 1);
  other.spec.set_id(kTable + 1);
  other.spec.set_name("other");
  ASSERT_THAT(shard_.Declare(CheckpointJob(), {}, {other}), IsOk());
  EXPECT_EQ(Save(2), 0u);
}

}  // namespace
}  // namespace ballast
