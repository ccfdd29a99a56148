// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_store.h"

#include <atomic>
#include <numeric>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/storage/framed_message.h"
#include "common/storage/shard_log.h"
#include "gtest/gtest.h"
#include "server/durability/shard_store_fixture.h"

namespace ballast {
namespace {

TEST_F(ShardStoreTest, GivesBackTheShardToTheBit) {
  Process& process = StartJob();
  EXPECT_FALSE(process.recovered.found);
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(process.Push(0, i, i - 1, 0.1f * i).ok());
    ASSERT_TRUE(process.Push(1, i, i - 1, -0.3f * i).ok());
  }
  EXPECT_TRUE(ExpectRecovers(End()).recovered.found);
}

TEST_F(ShardStoreTest, KnowsHowFarTheJobsScheduleWas) {
  // The large limit recovers from the log alone; the small one from a snapshot after many rotations.
  for (uint64_t log_bytes : {1 << 28, 1 << 14}) {
    folder_ = NewFolder();
    Process& process = StartJob(Job(), PosixFileSystem(), log_bytes);
    for (uint64_t i = 1; i <= 40; ++i) ASSERT_TRUE(process.Push(0, i, i - 1, 1, 1, 0.02 * i).ok());
    ASSERT_TRUE(process.Push(1, 1, 0, 1, 1, 0.1).ok());
    const std::string before = End();
    EXPECT_NE(before.find(" p0.8 "), std::string::npos);
    ExpectRecovers(before, log_bytes);
  }
}

TEST_F(ShardStoreTest, KeepsTheValuesThatWereSet) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7}, others = {1, 2, 3, 4, 5, 6, 8};
  const auto set = [this](const std::vector<float>& to) {
    const absl::string_view payload = BytesOf(to);
    return process_->shard.SetValues("job", {{{2, 0}, v1::ENCODING_FP32, {&payload, 1}}});
  };
  StartJob();
  ASSERT_TRUE(set(values).ok());
  // A refused call is not recorded.
  ASSERT_FALSE(set(others).ok());
  ASSERT_TRUE(process_->Push(0, 1, 0, 1).ok());
  ExpectRecovers(End());
  EXPECT_EQ(set(values)->unchanged, 1);
  EXPECT_EQ(set(others).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ShardStoreTest, AnswersAPushFromBeforeTheCrashAsADuplicate) {
  const PushOutcome first = *StartJob().Push(0, 1, 0, 1);
  const absl::StatusOr<PushOutcome> again = Start().Push(0, 1, 0, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->duplicate);
  EXPECT_EQ(again->applied, first.applied);
  EXPECT_EQ(process_->shard.status().workers_pushes[0].accepted, 1);
}

TEST_F(ShardStoreTest, RefusesAnIncarnationFromBeforeTheCrash) {
  ASSERT_TRUE(StartJob().Push(0, 1, 0, 1, /*incarnation=*/2).ok());
  EXPECT_EQ(Start().Push(0, 1, 0, 1, /*incarnation=*/1).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Imitates a shard that checked, recorded and ordered in three separate steps: appends the log's push again, and a
// pause, of incarnation 1.
void AppendOldIncarnation(const std::string& folder) {
  const uint64_t first = ListLogs(*PosixFileSystem(), folder)->back();
  const std::string path = LogPath(folder, first);
  auto reader = RecordReader::Open(path, first);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<std::string> bodies;
  while (true) {
    const auto record = (*reader)->Next();
    ASSERT_TRUE(record.ok()) << record.status();
    if (!record->has_value()) break;
    bodies.push_back((*record)->body);
  }
  internal::v1::ShardRecord push, pause;
  absl::string_view behind = *ParseFramed(bodies.back(), push);
  if (push.has_mark()) {
    bodies.pop_back();
    behind = *ParseFramed(bodies.back(), push);
  }
  ASSERT_TRUE(push.has_push());
  push.mutable_push()->set_incarnation(1);
  pause.mutable_pause()->set_incarnation(1);
  const std::string old = absl::StrCat(FrameMessage(push), behind);
  bodies.push_back(old);
  bodies.push_back(FrameMessage(pause));
  ASSERT_TRUE(PosixFileSystem()->Remove(path).ok());
  auto writer = RecordWriter::Create(PosixFileSystem(), path, first);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const std::string& body : bodies) ASSERT_TRUE((*writer)->Append({body}, 0).ok());
}

TEST_F(ShardStoreTest, StartsWithALogInWhichAnOldIncarnationFollowsANewOne) {
  ASSERT_TRUE(StartJob().Push(0, 1, 0, 1, /*incarnation=*/2).ok());
  const std::string before = End();
  ASSERT_NO_FATAL_FAILURE(AppendOldIncarnation(folder_));
  const Process& process = ExpectRecovers(before);
  EXPECT_EQ(process.recovered.refused_records, 2);
  EXPECT_EQ(process.shard.status().recovery->refused_records, 2);
}

TEST_F(ShardStoreTest, RecordsNoPushOrPauseOfAnOldIncarnationBehindANewerOne) {
  Process& process = StartJob();
  // Each thread is an incarnation of worker 0 that does not know the later ones.
  std::atomic<uint64_t> newest = 1;
  std::vector<std::thread> lives;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    lives.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        const uint64_t incarnation = newest++;
        process.Push(0, 1, 0, 0.1f, incarnation).IgnoreError();
        process.Push(0, 2, 1, 0.1f, incarnation).IgnoreError();
        process.shard.Pause("job", 0, incarnation).IgnoreError();
      }
    });
  }
  for (std::thread& life : lives) life.join();
  EXPECT_EQ(ExpectRecovers(End()).recovered.refused_records, 0);
}

// State after the first step of these workers, who push in this order; with `restarts`, the process restarts from a
// snapshot before the last push.
std::string StateAfterStep(const std::vector<uint32_t>& workers, bool restarts) {
  const std::string folder = NewFolder();
  JobConfig job = Job(v1::Durability::WAL, workers.size());
  job.policy.mutable_sync()->set_deterministic(true);
  auto process = std::make_unique<Process>(folder);
  process->Declare(job);
  for (const uint32_t worker : absl::MakeConstSpan(workers).first(workers.size() - 1)) {
    EXPECT_THAT(process->Push(worker, 1, 0, 0.01f * (worker + 1)), IsOk());
  }
  if (restarts) {
    const std::string before = process->Fingerprint();
    EXPECT_THAT(process->store->TakeSnapshot(), IsOk());
    process.reset();
    process = std::make_unique<Process>(folder);
    EXPECT_THAT(process->status, IsOk());
    EXPECT_EQ(process->recovered.records, 0);
    EXPECT_EQ(process->Fingerprint(), before);
  }
  EXPECT_EQ(process->Push(workers.back(), 1, 0, 0.9f).value_or(PushOutcome()).applied, 2);
  return process->Fingerprint();
}

TEST_F(ShardStoreTest, KeepsGradientsThatWaitForTheirStep) {
  EXPECT_EQ(StateAfterStep({2, 0, 1}, true), StateAfterStep({2, 0, 1}, false));
}

TEST_F(ShardStoreTest, KeepsTheGradientsThat600WorkersHandedIn) {
  // The gradient that comes first in rank order is missing, so all others are held.
  std::vector<uint32_t> workers(601);
  std::iota(workers.rbegin(), workers.rend(), 0);
  EXPECT_EQ(StateAfterStep(workers, true), StateAfterStep(workers, false));
}

TEST_F(ShardStoreTest, RemembersPausesOfTheSameRun) {
  JobConfig job = Job();
  job.policy.mutable_sync();
  for (const uint64_t next : {1, 2}) {
    Process& process = StartJob(job);
    if (next == 1) {
      ASSERT_TRUE(process.shard.Pause("job", 1, 1).ok());
    }
    const absl::StatusOr<PushOutcome> outcome = process.Push(0, next, next - 1, 1);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->applied, 2) << "the step does not wait for the paused worker";
    ASSERT_TRUE(process.store->TakeSnapshot().ok());
  }
}

TEST_F(ShardStoreTest, KeepsTheClocksOfBoundedWorkers) {
  JobConfig job = Job(v1::Durability::WAL, 3);
  job.policy.mutable_bounded()->set_steps_ahead(1);
  Process& process = StartJob(job);
  ASSERT_NO_FATAL_FAILURE(process.PushSteps(1, 2));
  ASSERT_TRUE(process.Push(1, 1, 0, 1).ok());
  ASSERT_TRUE(process.shard.Pause("job", 2, 1).ok());
  ASSERT_TRUE(process.store->TakeSnapshot().ok());
  ASSERT_TRUE(process.shard.Pause("job", 1, 1).ok());
  ExpectRecovers(End());
}

TEST_F(ShardStoreTest, KeepsTheLogOfASnapshotThatCannotBeReadBack) {
  StartJob(Job(), &files_).PushSteps(1, 10);
  const size_t logs = ListLogs(files_, folder_)->size();
  files_.CorruptFilesWith("snapshot-");
  EXPECT_THAT(process_->store->TakeSnapshot(), Fails(absl::StatusCode::kDataLoss, ""));
  EXPECT_EQ(ListSnapshots(files_, folder_)->size(), 0);
  EXPECT_EQ(ListLogs(files_, folder_)->size(), logs + 1);
  ASSERT_TRUE(ExpectRecovers(End()).store->TakeSnapshot().ok());
  EXPECT_EQ(ListSnapshots(*PosixFileSystem(), folder_)->size(), 1);
  ExpectRecovers(End());
}

TEST_F(ShardStoreTest, WaitsLongerAfterEachSnapshotThatFailed) {
  files_.CorruptFilesWith("snapshot-");
  Process& process = StartJob(Job(), &files_, /*log_bytes=*/3000);
  ASSERT_NO_FATAL_FAILURE(process.PushSteps(1, 20));
  const std::vector<std::string> lines = process.lines.Await(3);
  EXPECT_TRUE(absl::StrContains(lines[0], "shard 0: snapshot failed: ")) << lines[0];
  EXPECT_TRUE(absl::EndsWith(lines[0], "the log is kept, next attempt in 1ms")) << lines[0];
  EXPECT_TRUE(absl::EndsWith(lines[1], "next attempt in 2ms")) << lines[1];
  EXPECT_TRUE(absl::EndsWith(lines[2], "next attempt in 4ms")) << lines[2];
  EXPECT_FALSE(process.failed.HasBeenNotified());
  EXPECT_GE(process.store->status().snapshot_failures, 2);
}

TEST_F(ShardStoreTest, DoesNotTakeASnapshotAgainWithEachRecordBehindOneThatFailed) {
  files_.CorruptFilesWith("snapshot-");
  Process process(folder_, &files_, /*log_bytes=*/3000, /*first_retry=*/absl::Hours(1));
  process.Declare(Job());
  ASSERT_NO_FATAL_FAILURE(process.PushSteps(1, 20));
  process.lines.Await(1);
  ASSERT_NO_FATAL_FAILURE(process.PushSteps(21, 100));
  EXPECT_LE(process.store->status().snapshot_failures, 1);
}

TEST_F(ShardStoreTest, KnowsTheLogsBytesAndSyncs) {
  Process& process = StartJob(Job(v1::Durability::WAL_SYNC));
  ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
  const LogStatus written = *process.store->log();
  EXPECT_GT(written.unsynced_bytes, 307 * sizeof(float)) << "nobody waits for the push yet";
  EXPECT_GE(written.bytes, written.unsynced_bytes);
  ASSERT_TRUE(process.PushDurably(0, 2, 1, 1).ok());
  const LogStatus synced = *process.store->log();
  EXPECT_EQ(synced.unsynced_bytes, 0u);
  EXPECT_GT(synced.bytes, written.bytes);
  EXPECT_GT(synced.sync_microseconds.count(), written.sync_microseconds.count());
}

TEST_F(ShardStoreTest, KnowsItsNewestSnapshotAfterARestartToo) {
  ASSERT_NO_FATAL_FAILURE(StartJob().PushSteps(1, 5));
  EXPECT_EQ(process_->store->log()->snapshot, absl::InfinitePast());
  const absl::Time began = absl::Now();
  ASSERT_TRUE(process_->store->TakeSnapshot().ok());
  const LogStatus taken = *process_->store->log();
  EXPECT_GE(taken.snapshot, began);
  EXPECT_GT(taken.snapshot_took, absl::ZeroDuration());
  EXPECT_LE(taken.snapshot_took, taken.snapshot - began);
  const Process& process = ExpectRecovers(End());
  // The file's time has the resolution of the kernel's clock tick.
  EXPECT_GE(process.store->log()->snapshot, began - absl::Seconds(1));
  EXPECT_LE(process.store->log()->snapshot, taken.snapshot);
  EXPECT_EQ(process.store->log()->snapshot_took, absl::ZeroDuration());
}

TEST_F(ShardStoreTest, SnapshotsStandForTheLogBeforeThem) {
  ASSERT_NO_FATAL_FAILURE(StartJob().PushSteps(1, 50));
  ASSERT_TRUE(process_->store->TakeSnapshot().ok());
  EXPECT_LT(process_->store->status().log_bytes, 4096);
  ASSERT_NO_FATAL_FAILURE(process_->PushSteps(51, 60));
  const Process& process = ExpectRecovers(End());
  EXPECT_GT(process.recovered.snapshot_position, 50);
  EXPECT_LT(process.recovered.records, 20);
}

TEST_F(ShardStoreTest, WritesTheLogInThePlaceOfFilesThatASnapshotStandsFor) {
  // A file holds about three pushes.
  StartJob(Job(), &files_, /*log_bytes=*/6000);
  for (uint64_t i = 1; i <= 26; i += 5) {
    ASSERT_NO_FATAL_FAILURE(process_->PushSteps(i, i + 4));
    ASSERT_TRUE(process_->store->TakeSnapshot().ok());
  }
  ASSERT_NO_FATAL_FAILURE(process_->PushSteps(31, 31));
  const std::string before = End();
  EXPECT_GE(files_.reuses(), 5);
  // The snapshot, the lock, the log and its spares.
  EXPECT_LE(files_.List(folder_)->size(), 5);
  const Process& process = ExpectRecovers(before);
  EXPECT_LE(process.recovered.records, 2);
  // Old records after the log's end do not count as an unfinished write.
  EXPECT_EQ(process.recovered.cut_bytes, 0);
}

TEST_F(ShardStoreTest, ReplaysPushesThatCameAtOnceInTheOrderInWhichTheyWereApplied) {
  // Snapshots are taken during the pushes, whenever the log is long enough.
  Process& process = StartJob(Job(v1::Durability::WAL, 4), PosixFileSystem(), /*log_bytes=*/100000);
  std::vector<std::thread> workers;
  for (uint32_t worker = 0; worker < 4; ++worker) {
    workers.emplace_back([&process, worker] {
      for (uint64_t i = 1; i <= 200; ++i) ASSERT_TRUE(process.Push(worker, i, i - 1, 0.01f * (worker + i)).ok());
    });
  }
  for (std::thread& worker : workers) worker.join();
  ExpectRecovers(End());
}

TEST_F(ShardStoreTest, AJobWithoutAFolderIsRefused) {
  ParameterShard shard({}, Clock::Real());
  EXPECT_THAT(shard.Declare(Job(), {Tensor(1, "w", 3)}),
              Fails(absl::StatusCode::kFailedPrecondition, "wants durability WAL, but shard 0 has no state directory"));
}

}  // namespace
}  // namespace ballast
