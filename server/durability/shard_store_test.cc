// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_store.h"

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/storage/framed_message.h"
#include "common/storage/shard_log.h"
#include "common/storage/testing/lossy_file_system.h"
#include "gtest/gtest.h"
#include "server/durability/shard_store_fixture.h"

namespace ballast {
namespace {

TEST(ShardStoreTest, GivesBackTheShardToTheBit) {
  const std::string folder = NewFolder();
  std::string before;
  {
    Process process(folder);
    ASSERT_TRUE(process.status.ok()) << process.status;
    EXPECT_FALSE(process.recovered.found);
    process.Declare(Job(v1::Durability::WAL));
    for (uint64_t i = 1; i <= 20; ++i) {
      ASSERT_TRUE(process.Push(0, i, i - 1, 0.1f * i).ok());
      ASSERT_TRUE(process.Push(1, i, i - 1, -0.3f * i).ok());
    }
    before = process.Fingerprint();
  }
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_TRUE(process.recovered.found);
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, KnowsHowFarTheJobsScheduleWas) {
  // The large limit recovers from the log alone; the small one from a snapshot after many rotations.
  for (uint64_t log_bytes : {1 << 28, 1 << 14}) {
    const std::string folder = NewFolder();
    std::string before;
    {
      Process process(folder, PosixFileSystem(), log_bytes);
      process.Declare(Job(v1::Durability::WAL));
      for (uint64_t i = 1; i <= 40; ++i) ASSERT_TRUE(process.Push(0, i, i - 1, 1, 1, 0.02 * i).ok());
      ASSERT_TRUE(process.Push(1, 1, 0, 1, 1, 0.1).ok());
      before = process.Fingerprint();
      EXPECT_NE(before.find(" p0.8 "), std::string::npos);
    }
    Process process(folder, PosixFileSystem(), log_bytes);
    ASSERT_TRUE(process.status.ok()) << process.status;
    EXPECT_EQ(process.Fingerprint(), before);
  }
}

TEST(ShardStoreTest, KeepsTheValuesThatWereSet) {
  const std::string folder = NewFolder();
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7}, others = {1, 2, 3, 4, 5, 6, 8};
  const auto set = [](Process& process, const std::vector<float>& to) {
    const absl::string_view payload(reinterpret_cast<const char*>(to.data()), to.size() * sizeof(float));
    return process.shard.SetValues("job", {{{2, 0}, v1::ENCODING_FP32, {&payload, 1}}});
  };
  std::string before;
  {
    Process process(folder);
    process.Declare(Job(v1::Durability::WAL));
    ASSERT_TRUE(set(process, values).ok());
    // A refused call is not recorded.
    ASSERT_FALSE(set(process, others).ok());
    ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
    before = process.Fingerprint();
  }
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before);
  EXPECT_EQ(set(process, values)->unchanged, 1);
  EXPECT_EQ(set(process, others).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ShardStoreTest, AnswersAPushFromBeforeTheCrashAsADuplicate) {
  const std::string folder = NewFolder();
  PushOutcome first;
  {
    Process process(folder);
    process.Declare(Job(v1::Durability::WAL));
    first = *process.Push(0, 1, 0, 1);
  }
  Process process(folder);
  const absl::StatusOr<PushOutcome> again = process.Push(0, 1, 0, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->duplicate);
  EXPECT_EQ(again->applied, first.applied);
  EXPECT_EQ(process.shard.status().workers_pushes[0].accepted, 1);
}

TEST(ShardStoreTest, RefusesAnIncarnationFromBeforeTheCrash) {
  const std::string folder = NewFolder();
  {
    Process process(folder);
    process.Declare(Job(v1::Durability::WAL));
    ASSERT_TRUE(process.Push(0, 1, 0, 1, /*incarnation=*/2).ok());
  }
  Process process(folder);
  EXPECT_EQ(process.Push(0, 1, 0, 1, /*incarnation=*/1).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ShardStoreTest, StartsWithALogInWhichAnOldIncarnationFollowsANewOne) {
  const std::string folder = NewFolder();
  std::string before;
  {
    Process process(folder);
    process.Declare(Job(v1::Durability::WAL));
    ASSERT_TRUE(process.Push(0, 1, 0, 1, /*incarnation=*/2).ok());
    before = process.Fingerprint();
  }
  {
    // Imitates a shard that checked, recorded and ordered in three separate steps.
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
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.recovered.refused_records, 2);
  EXPECT_EQ(process.shard.status().recovery->refused_records, 2);
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, RecordsNoPushOrPauseOfAnOldIncarnationBehindANewerOne) {
  const std::string folder = NewFolder();
  std::string before;
  {
    Process process(folder);
    process.Declare(Job(v1::Durability::WAL));
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
    before = process.Fingerprint();
  }
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.recovered.refused_records, 0);
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, KeepsGradientsThatWaitForTheirStep) {
  const std::string folder = NewFolder();
  JobConfig job = Job(v1::Durability::WAL, 3);
  job.policy.mutable_sync()->set_deterministic(true);
  std::string whole, recovered;
  for (const bool crash : {false, true}) {
    const std::string path = crash ? folder : NewFolder();
    auto process = std::make_unique<Process>(path);
    process->Declare(job);
    ASSERT_TRUE(process->Push(2, 1, 0, 0.7f).ok());
    ASSERT_TRUE(process->Push(0, 1, 0, 0.3f).ok());
    if (crash) {
      ASSERT_TRUE(process->store->TakeSnapshot().ok());
      process.reset();
      process = std::make_unique<Process>(path);
      ASSERT_TRUE(process->status.ok()) << process->status;
    }
    const absl::StatusOr<PushOutcome> last = process->Push(1, 1, 0, 0.9f);
    ASSERT_TRUE(last.ok());
    EXPECT_EQ(last->applied, 2);
    (crash ? recovered : whole) = process->Fingerprint();
  }
  EXPECT_EQ(recovered, whole);
}

TEST(ShardStoreTest, KeepsTheGradientsThat600WorkersHandedIn) {
  JobConfig job = Job(v1::Durability::WAL, 601);
  job.policy.mutable_sync()->set_deterministic(true);
  std::string whole, recovered;
  for (const bool crash : {false, true}) {
    const std::string path = NewFolder();
    auto process = std::make_unique<Process>(path);
    process->Declare(job);
    // The gradient that comes first in rank order is missing, so all others are held.
    for (uint32_t worker = 600; worker > 0; --worker) ASSERT_TRUE(process->Push(worker, 1, 0, 0.01f * worker).ok());
    if (crash) {
      const std::string before = process->Fingerprint();
      ASSERT_TRUE(process->store->TakeSnapshot().ok());
      process.reset();
      process = std::make_unique<Process>(path);
      ASSERT_TRUE(process->status.ok()) << process->status;
      EXPECT_EQ(process->recovered.records, 0);
      EXPECT_EQ(process->Fingerprint(), before);
    }
    const absl::StatusOr<PushOutcome> last = process->Push(0, 1, 0, 0.9f);
    ASSERT_TRUE(last.ok());
    EXPECT_EQ(last->applied, 2);
    (crash ? recovered : whole) = process->Fingerprint();
  }
  EXPECT_EQ(recovered, whole);
}

TEST(ShardStoreTest, RemembersPausesOfTheSameRun) {
  const std::string folder = NewFolder();
  JobConfig job = Job(v1::Durability::WAL, 2);
  job.policy.mutable_sync();
  for (const bool snapshot : {false, true}) {
    Process process(folder);
    ASSERT_TRUE(process.status.ok()) << process.status;
    process.Declare(job);
    const uint64_t next = snapshot ? 2 : 1;
    if (!snapshot) {
      ASSERT_TRUE(process.shard.Pause("job", 1, 1).ok());
    }
    const absl::StatusOr<PushOutcome> outcome = process.Push(0, next, next - 1, 1);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->applied, 2) << "the step does not wait for the paused worker";
    ASSERT_TRUE(process.store->TakeSnapshot().ok());
  }
}

TEST(ShardStoreTest, KeepsTheClocksOfBoundedWorkers) {
  const std::string folder = NewFolder();
  JobConfig job = Job(v1::Durability::WAL, 3);
  job.policy.mutable_bounded()->set_staleness(1);
  std::string before;
  {
    Process process(folder);
    process.Declare(job);
    ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
    ASSERT_TRUE(process.Push(0, 2, 1, 1).ok());
    ASSERT_TRUE(process.Push(1, 1, 0, 1).ok());
    ASSERT_TRUE(process.shard.Pause("job", 2, 1).ok());
    ASSERT_TRUE(process.store->TakeSnapshot().ok());
    ASSERT_TRUE(process.shard.Pause("job", 1, 1).ok());
    before = process.Fingerprint();
  }
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, KeepsTheLogOfASnapshotThatCannotBeReadBack) {
  const std::string folder = NewFolder();
  std::string before;
  {
    LossyFileSystem files;
    Process process(folder, &files);
    process.Declare(Job(v1::Durability::WAL));
    for (uint64_t i = 1; i <= 10; ++i) ASSERT_TRUE(process.Push(0, i, i - 1, 0.1f * i).ok());
    const size_t logs = ListLogs(files, folder)->size();
    files.CorruptFilesWith("snapshot-");
    const absl::Status status = process.store->TakeSnapshot();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_EQ(ListSnapshots(files, folder)->size(), 0);
    EXPECT_EQ(ListLogs(files, folder)->size(), logs + 1);
    before = process.Fingerprint();
  }
  {
    Process process(folder);
    ASSERT_TRUE(process.status.ok()) << process.status;
    EXPECT_EQ(process.Fingerprint(), before);
    ASSERT_TRUE(process.store->TakeSnapshot().ok());
    EXPECT_EQ(ListSnapshots(*PosixFileSystem(), folder)->size(), 1);
  }
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, WaitsLongerAfterEachSnapshotThatFailed) {
  LossyFileSystem files;
  files.CorruptFilesWith("snapshot-");
  Process process(NewFolder(), &files, /*log_bytes=*/3000);
  process.Declare(Job(v1::Durability::WAL));
  uint64_t pushed = 0;
  while (pushed < 20) {
    ++pushed;
    ASSERT_TRUE(process.Push(0, pushed, pushed - 1, 1).ok());
  }
  const std::vector<std::string> lines = process.lines.Await(3);
  EXPECT_TRUE(absl::StrContains(lines[0], "shard 0: snapshot failed: ")) << lines[0];
  EXPECT_TRUE(absl::EndsWith(lines[0], "the log is kept, next attempt in 1ms")) << lines[0];
  EXPECT_TRUE(absl::EndsWith(lines[1], "next attempt in 2ms")) << lines[1];
  EXPECT_TRUE(absl::EndsWith(lines[2], "next attempt in 4ms")) << lines[2];
  EXPECT_FALSE(process.failed.HasBeenNotified());
  EXPECT_GE(process.store->status().snapshot_failures, 2);
}

TEST(ShardStoreTest, DoesNotTakeASnapshotAgainWithEachRecordBehindOneThatFailed) {
  LossyFileSystem files;
  files.CorruptFilesWith("snapshot-");
  Process process(NewFolder(), &files, /*log_bytes=*/3000, 0, /*first_retry=*/absl::Hours(1));
  process.Declare(Job(v1::Durability::WAL));
  for (uint64_t i = 1; i <= 20; ++i) ASSERT_TRUE(process.Push(0, i, i - 1, 1).ok());
  process.lines.Await(1);
  for (uint64_t i = 21; i <= 100; ++i) ASSERT_TRUE(process.Push(0, i, i - 1, 1).ok());
  EXPECT_LE(process.store->status().snapshot_failures, 1);
}

TEST(ShardStoreTest, SnapshotsStandForTheLogBeforeThem) {
  const std::string folder = NewFolder();
  std::string before;
  {
    Process process(folder);
    process.Declare(Job(v1::Durability::WAL));
    for (uint64_t i = 1; i <= 50; ++i) ASSERT_TRUE(process.Push(0, i, i - 1, 0.1f * i).ok());
    ASSERT_TRUE(process.store->TakeSnapshot().ok());
    EXPECT_LT(process.store->status().log_bytes, 4096);
    for (uint64_t i = 51; i <= 60; ++i) ASSERT_TRUE(process.Push(0, i, i - 1, 0.1f * i).ok());
    before = process.Fingerprint();
  }
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_GT(process.recovered.snapshot_position, 50);
  EXPECT_LT(process.recovered.records, 20);
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, WritesTheLogInThePlaceOfFilesThatASnapshotStandsFor) {
  LossyFileSystem files;
  const std::string folder = NewFolder();
  std::string before;
  {
    // A file holds about three pushes.
    Process process(folder, &files, /*log_bytes=*/6000);
    process.Declare(Job(v1::Durability::WAL));
    for (uint64_t i = 1; i <= 30; ++i) {
      ASSERT_TRUE(process.Push(0, i, i - 1, 0.1f * i).ok());
      if (i % 5 == 0) {
        ASSERT_TRUE(process.store->TakeSnapshot().ok());
      }
    }
    ASSERT_TRUE(process.Push(0, 31, 30, 0.1f).ok());
    before = process.Fingerprint();
  }
  EXPECT_GE(files.reuses(), 5);
  // The snapshot, the lock, the log and its spares.
  EXPECT_LE(files.List(folder)->size(), 5);
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_LE(process.recovered.records, 2);
  // Old records after the log's end do not count as an unfinished write.
  EXPECT_EQ(process.recovered.cut_bytes, 0);
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, ReplaysPushesThatCameAtOnceInTheOrderInWhichTheyWereApplied) {
  const std::string folder = NewFolder();
  std::string before;
  {
    // Snapshots are taken during the pushes, whenever the log is long enough.
    Process process(folder, PosixFileSystem(), /*log_bytes=*/100000);
    process.Declare(Job(v1::Durability::WAL, 4));
    std::vector<std::thread> workers;
    for (uint32_t worker = 0; worker < 4; ++worker) {
      workers.emplace_back([&process, worker] {
        for (uint64_t i = 1; i <= 200; ++i) ASSERT_TRUE(process.Push(worker, i, i - 1, 0.01f * (worker + i)).ok());
      });
    }
    for (std::thread& worker : workers) worker.join();
    before = process.Fingerprint();
  }
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, AJobWithoutAFolderIsRefused) {
  ParameterShard shard({}, Clock::Real());
  const absl::Status status = shard.Declare(Job(v1::Durability::WAL), {Tensor(1, "w", 3)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "wants durability WAL, but shard 0 has no state directory"))
      << status;
}

}  // namespace
}  // namespace ballast
