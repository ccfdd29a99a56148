// SPDX-License-Identifier: Apache-2.0
// Tests of rows in the log, in snapshots and in checkpoints.
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file.h"
#include "common/storage/shard_log.h"
#include "common/tables/placed_table.h"
#include "common/tensors/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/durability/checkpoint_source.h"
#include "server/durability/shard_checkpoint.h"
#include "server/durability/shard_store_fixture.h"
#include "server/durability/table_store_fixture.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class TableStoreTest : public ShardStoreTest {
 protected:
  Process& StartTables(uint64_t log_bytes = 1 << 28) {
    Process& process = Start(PosixFileSystem(), log_bytes);
    EXPECT_THAT(process.shard.Declare(Job(), {Tensor(1, "w", 300)}, {PartOf(0, 1)}), IsOk());
    return process;
  }
};

TEST_F(TableStoreTest, RowsComeBackFromTheLog) {
  Process& process = StartTables();
  for (uint64_t step = 1; step <= 20; ++step)
    ASSERT_THAT(PushRows(process.shard, 50 * step, 0.1f * step, step), IsOk());
  const auto want = RowsOf(process.shard);
  EXPECT_EQ(want.size(), 1001u);
  Process& again = Start();
  EXPECT_EQ(again.recovered.records, 21u);
  EXPECT_EQ(RowsOf(again.shard), want);
  // A retry is a duplicate, and the next push goes on.
  EXPECT_TRUE(PushRows(again.shard, 1000, 2, 20)->duplicate);
  EXPECT_EQ(PushRows(again.shard, 1001, 1, 21)->created, 1u);
}

TEST_F(TableStoreTest, ATableWithoutRowsComesBackFromASnapshot) {
  ASSERT_THAT(StartTables().store->TakeSnapshot(), IsOk());
  Process& again = Start();
  EXPECT_GE(again.recovered.snapshot_position, 1u);
  EXPECT_EQ(again.recovered.records, 0u);
  EXPECT_EQ(PushRows(again.shard, 10, 1, 1)->created, 10u);
}

TEST_F(TableStoreTest, RowsComeBackFromASnapshotAndTheLogAfterIt) {
  Process& process = StartTables();
  for (uint64_t step = 1; step <= 20; ++step)
    ASSERT_THAT(PushRows(process.shard, 50 * step, 0.1f * step, step), IsOk());
  ASSERT_THAT(process.store->TakeSnapshot(), IsOk());
  for (uint64_t step = 21; step <= 25; ++step) ASSERT_THAT(PushRows(process.shard, 30 * step, 1, step), IsOk());
  const auto want = RowsOf(process.shard);
  Process& again = Start();
  EXPECT_GE(again.recovered.snapshot_position, 21u);
  EXPECT_EQ(again.recovered.records, 5u);
  EXPECT_EQ(RowsOf(again.shard), want);
  EXPECT_TRUE(PushRows(again.shard, 1000, 2, 25)->duplicate);
}

TEST_F(TableStoreTest, SnapshotsAreTakenWhilePushesGoOn) {
  std::map<uint64_t, std::string> want;
  {
    Process& process = StartTables(/*log_bytes=*/50000);
    for (uint64_t step = 1; step <= 200; ++step) ASSERT_THAT(PushRows(process.shard, 300, 0.1f * step, step), IsOk());
    ASSERT_THAT(process.store->TakeSnapshot(), IsOk());
    want = RowsOf(process.shard);
    EXPECT_GT(process.shard.status().snapshots, 0u);
  }
  EXPECT_EQ(RowsOf(Start().shard), want);
}

TEST_F(TableStoreTest, ASnapshotOfADamagedRowIsRefused) {
  Process& process = StartTables();
  ASSERT_THAT(PushRows(process.shard, 100, 1, 1), IsOk());
  ASSERT_THAT(process.store->TakeSnapshot(), IsOk());
  process_.reset();
  const std::vector<uint64_t> snapshots = ListSnapshots(*PosixFileSystem(), folder_).value();
  ASSERT_EQ(snapshots.size(), 1u);
  const std::string path = SnapshotPath(folder_, snapshots[0]);
  std::string content = ReadFile(path).value();
  content[content.size() - 200] ^= 1;
  ASSERT_THAT(PosixFileSystem()->Remove(path), IsOk());
  std::ofstream(path, std::ios::binary) << content;
  process_ = std::make_unique<Process>(folder_);
  EXPECT_EQ(process_->status.code(), absl::StatusCode::kDataLoss) << process_->status;
}

// A synchronous table of two workers, of which the second is behind by a message when the process ends.
TEST_F(TableStoreTest, AStepThatIsNotCompleteComesBackFromTheSnapshotAndFromTheLog) {
  JobConfig job = Job();
  job.policy.mutable_sync();
  for (const bool snapshot : {false, true}) {
    folder_ = NewFolder();
    Process& process = Start();
    ASSERT_THAT(process.shard.Declare(job, {}, {PartOf(0, 1)}), IsOk());
    for (uint64_t step = 1; step <= 3; ++step) {
      ASSERT_THAT(PushRows(process.shard, 100, 1, step, 0, 1, /*worker=*/0), IsOk());
      ASSERT_THAT(PushRows(process.shard, 200, 0.5f, step, 0, 1, /*worker=*/1), IsOk());
    }
    ASSERT_THAT(PushRows(process.shard, 50, 2, 4, 0, 1, /*worker=*/0), IsOk());
    if (snapshot) {
      ASSERT_THAT(process.store->TakeSnapshot(), IsOk());
    }
    const auto before = RowsOf(process.shard);
    Process& again = Start();
    EXPECT_EQ(RowsOf(again.shard), before);
    EXPECT_EQ(PushRows(again.shard, 60, 4, 4, 0, 1, /*worker=*/1)->applied, 60u);
    EXPECT_EQ(again.shard.status().tables[0].clock, 4u);
  }
}

JobConfig BoundedJob(v1::Durability::Mode mode = v1::Durability::WAL) {
  JobConfig job = Job(mode);
  job.policy.mutable_bounded()->set_steps_ahead(1);
  return job;
}

// True if a pull at that step need not wait.
bool MayPull(ParameterShard& shard, uint64_t step) {
  bool ended = false;
  const WaitList::Ticket ticket = shard.AwaitRows("job", {step, std::nullopt}, {kTable}, 0, absl::Seconds(10), false,
                                                  [&](const absl::Status& status) { ended = status.ok(); });
  const bool may = ended;
  if (!may) shard.CancelPull(ticket);
  return may;
}

// A bounded table of two workers, of which the second is behind.
TEST_F(TableStoreTest, WorkersClocksComeBackFromTheSnapshotAndFromTheLog) {
  for (const bool snapshot : {false, true}) {
    folder_ = NewFolder();
    Process& process = Start();
    ASSERT_THAT(process.shard.Declare(BoundedJob(), {}, {PartOf(0, 1)}), IsOk());
    for (uint64_t step = 1; step <= 3; ++step) {
      ASSERT_THAT(PushRows(process.shard, 100, 1, step, 0, 1, /*worker=*/0), IsOk());
    }
    ASSERT_THAT(PushRows(process.shard, 100, 1, 1, 0, 1, /*worker=*/1), IsOk());
    if (snapshot) {
      ASSERT_THAT(process.store->TakeSnapshot(), IsOk());
    }
    const auto before = RowsOf(process.shard);
    Process& again = Start();
    EXPECT_EQ(RowsOf(again.shard), before);
    EXPECT_TRUE(MayPull(again.shard, 2));
    EXPECT_FALSE(MayPull(again.shard, 3));
    ASSERT_THAT(again.shard.Pause("job", 1, 1), IsOk());
    EXPECT_TRUE(MayPull(again.shard, 4));
    EXPECT_FALSE(MayPull(again.shard, 5));
    if (snapshot) {
      ASSERT_THAT(again.store->TakeSnapshot(), IsOk());
    }
    EXPECT_TRUE(MayPull(Start().shard, 4)) << "the pause";
  }
}

TEST_F(TableStoreTest, ScaledPushesComeBackFromTheLogAndFromSnapshots) {
  for (const bool snapshot : {false, true}) {
    ParameterShard twin({}, Clock::Real());
    ASSERT_THAT(twin.Declare(ScaledJob(v1::Durability::NONE), {}, {PartOf(0, 1)}), IsOk());
    folder_ = NewFolder();
    Process* process = &Start();
    ASSERT_THAT(process->shard.Declare(ScaledJob(), {}, {PartOf(0, 1)}), IsOk());
    for (uint64_t sequence = 1; sequence <= 40; ++sequence) {
      // The clock is `sequence` - 1; the rows were pulled up to 6 steps before.
      PushOfRows push{.ids = 5 * sequence, .value = 1, .sequence = sequence};
      if (sequence % 8 != 0) push.clock = sequence - 1 - std::min(sequence - 1, sequence % 7);
      const absl::StatusOr<PushOutcome> live = PushRows(process->shard, push);
      ASSERT_THAT(live, IsOk());
      EXPECT_EQ(live->max_staleness, push.clock.has_value() ? sequence - 1 - *push.clock : 0);
      ASSERT_THAT(PushRows(twin, push), IsOk());
      if (snapshot && sequence % 16 == 4) {
        ASSERT_THAT(process->store->TakeSnapshot(), IsOk());
      }
      if (sequence % 10 != 0) continue;
      process = &Start();
      ASSERT_EQ(RowsOf(process->shard), RowsOf(twin)) << "push " << sequence << (snapshot ? " with snapshots" : "");
    }
  }
}

// Leaves a directory of a job whose machine failed after both workers had ended ten steps of rows, of which four were
// on the disk.
void LoseSixSteps(const std::string& folder, const JobConfig& job) {
  LossyFileSystem files;
  {
    Process process(folder, &files);
    ASSERT_THAT(process.shard.Declare(job, {}, {PartOf(0, 1)}), IsOk());
    for (uint64_t step = 1; step <= 10; ++step) {
      for (uint32_t worker : {0u, 1u}) {
        ASSERT_THAT(PushRows(process.shard, 10 * step, 1, step, 0, 1, worker), IsOk());
      }
      if (step != 4) continue;
      absl::Notification done;
      process.shard.AwaitSynced([&](const absl::Status& status) {
        EXPECT_TRUE(status.ok()) << status;
        done.Notify();
      });
      done.WaitForNotification();
      files.LoseUnsyncedFromNowOn();
    }
  }
  ASSERT_TRUE(files.LoseUnsynced(1).ok());
}

TEST_F(TableStoreTest, ASynchronousTableThatLostItsLastSecondGoesOnAtTheStepOfItsWorkers) {
  JobConfig job = Job();
  job.policy.mutable_sync();
  LoseSixSteps(folder_, job);
  Process& process = Start();
  EXPECT_EQ(process.shard.status().tables[0].clock, 4u);
  EXPECT_EQ(process.shard.status().tables[0].rows, 40u);
  // The push of step 10 itself proves that ten updates were seen.
  ASSERT_THAT(PushRows(process.shard, 10, 1, 11, 0, 1, /*worker=*/0), IsOk());
  EXPECT_TRUE(MayPull(process.shard, 10));
  EXPECT_EQ(PushRows(process.shard, 10, 1, 11, 0, 1, /*worker=*/1)->applied, 10u);
  EXPECT_EQ(process.shard.status().tables[0].clock, 11u);
  EXPECT_EQ(process.shard.status().lost_updates, 6u);
  // The catch-up is in the log.
  const auto before = RowsOf(process.shard);
  Process& again = Start();
  EXPECT_EQ(RowsOf(again.shard), before);
  EXPECT_TRUE(MayPull(again.shard, 11));
}

TEST_F(TableStoreTest, AClockOfALostSecondIsNotStale) {
  LoseSixSteps(folder_, ScaledJob());
  Process& process = Start();
  EXPECT_EQ(process.shard.status().tables[0].clock, 8u);
  // The rows were pulled when both workers had ended ten steps.
  const auto pushed = PushRows(process.shard, {.ids = 10, .value = 1, .sequence = 11, .clock = 20});
  ASSERT_THAT(pushed, IsOk());
  EXPECT_EQ(pushed->max_staleness, 0u);
  EXPECT_EQ(pushed->applied, 10u);
  EXPECT_EQ(PushRows(process.shard, {.ids = 10, .value = 1, .sequence = 12, .clock = 8})->max_staleness, 1u);
}

TEST_F(TableStoreTest, WorkersThatWaitForLostRowsReportThem) {
  for (const bool bounded : {false, true}) {
    SCOPED_TRACE(bounded);
    folder_ = NewFolder();
    JobConfig job = BoundedJob();
    if (!bounded) job.policy.mutable_sync();
    LoseSixSteps(folder_, job);
    Process& process = Start();
    // Both wait for the step that both have ended.
    const uint64_t step = bounded ? 11 : 10;
    EXPECT_FALSE(MayPull(process.shard, step));
    EXPECT_EQ(process.shard.ReportVersions("job", 0, 1, {}, {.applied = 0, .ended = 10}).value_or(9), 1u);
    EXPECT_FALSE(MayPull(process.shard, step));
    EXPECT_EQ(process.shard.ReportVersions("job", 1, 1, {}, {.applied = 0, .ended = 10}).value_or(9), 1u);
    EXPECT_TRUE(MayPull(process.shard, step));
    EXPECT_EQ(process.shard.ReportVersions("job", 1, 1, {}, {.applied = 0, .ended = 10}).value_or(9), 0u);
    EXPECT_EQ(process.shard.status().tables[0].clock, bounded ? 20u : 10u);
    const auto before = RowsOf(process.shard);
    Process& again = Start();
    EXPECT_EQ(RowsOf(again.shard), before);
    EXPECT_TRUE(MayPull(again.shard, step));
    // A retry of what was lost is new, and ends no step again.
    ASSERT_THAT(PushRows(again.shard, 10, 1, 10, 0, 1, /*worker=*/0), IsOk());
    EXPECT_FALSE(MayPull(again.shard, step + 1));
  }
}

TEST_F(TableStoreTest, ATableThatCannotHaveLostAnythingRefusesAStepThatItHasNotSeen) {
  JobConfig job = Job(v1::Durability::WAL_SYNC);
  job.policy.mutable_sync();
  ASSERT_THAT(Start().shard.Declare(job, {}, {PartOf(0, 1)}), IsOk());
  Process& process = Start();
  EXPECT_EQ(PushRows(process.shard, 10, 1, 5).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(process.shard.ReportVersions("job", 0, 1, {}, {.applied = 0, .ended = 10}).value_or(9), 0u);
  EXPECT_EQ(process.shard.status().tables[0].clock, 0u);
}

// Shards with checkpoints, in as many servers as each part of a test wants.
class TableCheckpointTest : public testing::Test {
 protected:
  struct Server {
    Server(uint32_t rank, uint32_t shards, const std::string& resume_from)
        : shard({.rank = rank,
                 .keeps_checkpoints = true,
                 .resume_from = resume_from,
                 .load_checkpoint = [](const std::string& path, const JobConfig& job,
                                       absl::Span<const OwnedTensor> tensors,
                                       absl::Span<const std::unique_ptr<Table>> tables) -> absl::StatusOr<Resumption> {
                   const auto source = CheckpointSource::Open(path);
                   return source.ok() ? source->Load(job, tensors, tables) : source.status();
                 }},
                Clock::Real()),
          rank(rank),
          shards(shards) {}

    absl::Status Declare(const OwnedTable& table, const JobConfig& job = Job(v1::Durability::CHECKPOINT)) {
      return shard.Declare(job, {}, {table}).status();
    }

    ParameterShard shard;
    uint32_t rank, shards;
  };
  using Servers = std::vector<std::unique_ptr<Server>>;

  Servers Start(uint32_t shards, const std::string& resume_from = "",
                const JobConfig& job = Job(v1::Durability::CHECKPOINT)) {
    Servers servers;
    for (uint32_t rank = 0; rank < shards; ++rank) {
      servers.push_back(std::make_unique<Server>(rank, shards, resume_from));
      EXPECT_THAT(servers.back()->Declare(PartOf(rank, shards), job), IsOk());
    }
    return servers;
  }

  static void Push(Servers& servers, uint64_t ids, float value, uint64_t sequence) {
    for (auto& server : servers) {
      ASSERT_THAT(PushRows(server->shard, ids, value, sequence, server->rank, server->shards), IsOk());
    }
  }

  static std::map<uint64_t, std::string> All(Servers& servers) {
    std::map<uint64_t, std::string> rows;
    for (auto& server : servers) rows.merge(RowsOf(server->shard));
    return rows;
  }

  // Commits a checkpoint and returns the path of its manifest. A push changes the rows while they are written.
  std::string Save(Servers& servers, uint64_t sequence) {
    std::vector<std::string> addresses;
    for (const auto& server : servers) addresses.push_back(absl::StrCat("server:", server->rank + 1));
    internal::v1::CheckpointManifest manifest;
    manifest.set_id(1);
    manifest.add_incarnations(1);
    *manifest.mutable_map() = ShardMap(std::move(addresses)).ToProto();
    *manifest.mutable_map()->add_tables() = ToProto(SpreadRanges(PartOf(0, 1).spec, servers.size()));
    for (auto& server : servers) {
      CheckpointWriter writer(PosixFileSystem(), folder_.path(), server->rank);
      writer.Begin(1, server->shards, server->shard.Capture([] {}));
      EXPECT_THAT(PushRows(server->shard, 700, 5, sequence, server->rank, server->shards), IsOk());
      while (!writer.outcome().has_value()) absl::SleepFor(absl::Milliseconds(1));
      const absl::StatusOr<FileDigest> digest = writer.outcome()->digest;
      EXPECT_THAT(digest, IsOk());
      internal::v1::CheckpointManifest::File& file = *manifest.add_files();
      file.set_name(CheckpointFolder::ShardFileName(1, server->rank, server->shards));
      file.set_bytes(digest->bytes);
      file.set_checksum(digest->checksum);
    }
    EXPECT_THAT(folder_.Commit(manifest), IsOk());
    return folder_.ManifestPath(1);
  }

  CheckpointFolder folder_{PosixFileSystem(), NewFolder()};
};

TEST_F(TableCheckpointTest, HasTheRowsOfItsMomentForAnyNumberOfServers) {
  Servers two = Start(2);
  Push(two, 500, 1, 1);
  Push(two, 300, 0.5f, 2);
  const auto want = All(two);
  EXPECT_EQ(want.size(), 501u);
  const std::string manifest = Save(two, 3);
  EXPECT_NE(All(two), want);
  for (uint32_t shards : {1u, 2u, 3u, 5u}) {
    Servers resumed = Start(shards, manifest);
    EXPECT_EQ(All(resumed), want) << shards;
    // The workers' incarnations before the checkpoint no longer count.
    EXPECT_THAT(PushRows(resumed[0]->shard, 1, 1, 4, 0, shards).status().message(), HasSubstr("incarnation"));
  }
}

// The workers of a resumed job begin together, at the step of the furthest.
TEST_F(TableCheckpointTest, WorkersClocksBeginTogetherOnAnyNumberOfServers) {
  Servers two = Start(2, "", BoundedJob(v1::Durability::CHECKPOINT));
  Push(two, 100, 1, 1);
  Push(two, 100, 1, 2);
  ASSERT_THAT(two[0]->shard.Pause("job", 1, 1), IsOk());
  EXPECT_FALSE(MayPull(two[1]->shard, 3));
  const std::string manifest = Save(two, 3);
  for (uint32_t shards : {1u, 3u}) {
    JobConfig job = BoundedJob(v1::Durability::CHECKPOINT);
    job.workers = 5;
    for (const auto& server : Start(shards, manifest, job)) {
      EXPECT_TRUE(MayPull(server->shard, 3));
      EXPECT_FALSE(MayPull(server->shard, 4));
    }
  }
}

TEST_F(TableCheckpointTest, AScaledTableGoesOnAtItsClockOnAnyNumberOfServers) {
  const auto push = [](Servers& servers, PushOfRows of) {
    for (const auto& server : servers) {
      of.rank = server->rank;
      of.shards = server->shards;
      ASSERT_THAT(PushRows(server->shard, of), IsOk());
    }
  };
  Servers two = Start(2, "", ScaledJob(v1::Durability::CHECKPOINT));
  push(two, {.ids = 500, .value = 1, .sequence = 1, .clock = 0});
  push(two, {.ids = 300, .value = 0.5f, .sequence = 2, .clock = 0});
  const std::string manifest = Save(two, 3);
  std::optional<std::map<uint64_t, std::string>> want;
  for (uint32_t shards : {1u, 2u, 3u, 5u}) {
    Servers resumed = Start(shards, manifest, ScaledJob(v1::Durability::CHECKPOINT));
    const PushOfRows next{.ids = 500, .value = 2, .sequence = 1, .incarnation = 2, .clock = 1};
    push(resumed, next);
    if (!want.has_value()) want = All(resumed);
    EXPECT_EQ(All(resumed), *want) << shards;
    EXPECT_EQ(PushRows(resumed[0]->shard, {.ids = 500, .sequence = 2, .shards = shards, .incarnation = 2, .clock = 1})
                  ->max_staleness,
              2u);
    EXPECT_EQ(PushRows(resumed[0]->shard, {.ids = 500, .sequence = 3, .shards = shards, .incarnation = 2, .clock = 99})
                  ->max_staleness,
              0u)
        << "a clock of the time after the checkpoint";
  }
}

TEST_F(TableCheckpointTest, OfAnotherTableIsRefused) {
  Servers one = Start(1);
  Push(one, 10, 1, 1);
  const std::string manifest = Save(one, 2);
  Server other(0, 1, manifest);
  OwnedTable table = PartOf(0, 1);
  table.spec.mutable_optimizer()->mutable_adam()->set_learning_rate(0.2f);
  EXPECT_THAT(other.Declare(table).message(), HasSubstr("table 100000 \"rows\": "));
  table = PartOf(0, 1);
  table.spec.set_id(10);
  EXPECT_THAT(other.Declare(table).message(), HasSubstr("table \"rows\" is not in the checkpoint"));
}

TEST_F(TableCheckpointTest, WithoutAShardsRangesIsDamaged) {
  Servers two = Start(2);
  Push(two, 100, 1, 1);
  const std::string manifest = Save(two, 2);
  // Both files are of the first shard.
  internal::v1::CheckpointManifest changed = ReadManifest(manifest).value();
  *changed.mutable_files(1) = changed.files(0);
  changed.set_id(2);
  ASSERT_THAT(folder_.Commit(changed), IsOk());
  Server other(1, 2, folder_.ManifestPath(2));
  EXPECT_THAT(other.Declare(PartOf(1, 2)).message(), HasSubstr("got 0 of the 2048 ranges of table \"rows\""));
}

}  // namespace
}  // namespace ballast
