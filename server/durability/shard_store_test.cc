// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_store.h"

#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "common/concurrency/clock.h"
#include "common/storage/file.h"
#include "common/storage/framed_message.h"
#include "common/storage/shard_log.h"
#include "common/storage/testing/lossy_file_system.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

std::string NewFolder() {
  static int count = 0;
  return absl::StrCat(testing::TempDir(), "/store-", ++count);
}

JobConfig Job(v1::Durability::Mode mode, uint32_t workers = 2) {
  JobConfig job{"job", {}, workers, {}};
  job.policy.mutable_async();
  job.durability.set_mode(mode);
  return job;
}

OwnedTensor Tensor(uint32_t id, const std::string& name, int64_t elements) {
  OwnedTensor tensor;
  tensor.spec.set_id(id);
  tensor.spec.set_name(name);
  tensor.spec.add_shape(elements);
  tensor.spec.mutable_optimizer()->mutable_momentum()->set_learning_rate(0.1f);
  tensor.spec.mutable_optimizer()->mutable_momentum()->set_momentum(0.9f);
  return tensor;
}

void AppendBytes(const ValueBuffer& values, std::string& to) {
  to.append(reinterpret_cast<const char*>(values.values().data()), values.size() * sizeof(float));
}

// Collects the lines that a store logs. Thread safety: all methods may be called from any thread.
class Lines {
 public:
  void Add(const std::string& line) {
    absl::MutexLock lock(&mutex_);
    lines_.push_back(line);
  }
  std::vector<std::string> Await(size_t count) {
    const auto there = [this, count] {
      mutex_.AssertReaderHeld();
      return lines_.size() >= count;
    };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&there));
    return lines_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

// A shard and its state directory, as in a server process.
struct Process {
  explicit Process(const std::string& folder, FileSystem* files = PosixFileSystem(), uint64_t log_bytes = 1 << 28,
                   uint32_t rank = 0, absl::Duration first_retry = absl::Milliseconds(1))
      : shard(
            [&] {
              ParameterShard::Options options;
              options.rank = rank;
              options.open_journal = [this](const JobConfig& job) { return store->Start(job); };
              return options;
            }(),
            Clock::Real()) {
    ShardStore::Options options;
    options.folder = folder;
    options.shard = rank;
    options.log_bytes = log_bytes;
    options.file_bytes = 4096;
    options.first_retry = first_retry;
    options.log = [this](const std::string& line) { lines.Add(line); };
    options.on_failure = [this](absl::Status) { failed.Notify(); };
    absl::StatusOr<std::unique_ptr<ShardStore>> opened = ShardStore::Open(std::move(options), files, &shard);
    status = opened.status();
    if (!opened.ok()) return;
    store = *std::move(opened);
    absl::StatusOr<ShardStore::Recovered> found = store->Recover();
    status = found.status();
    if (found.ok()) recovered = *found;
  }

  void Declare(const JobConfig& job) {
    const auto owned = shard.Declare(job, {Tensor(1, "w", 300), Tensor(2, "b", 7)});
    ASSERT_TRUE(owned.ok()) << owned.status();
  }

  absl::StatusOr<PushOutcome> Push(uint32_t worker, uint64_t sequence, uint64_t step, float value,
                                   uint64_t incarnation = 1, std::optional<double> position = std::nullopt) {
    std::vector<float> w(300), b(7, value);
    for (size_t i = 0; i < w.size(); ++i) w[i] = value + i;
    const absl::string_view pieces[2] = {{reinterpret_cast<const char*>(w.data()), w.size() * 4},
                                         {reinterpret_cast<const char*>(b.data()), b.size() * 4}};
    const GradientView views[2] = {{{1, 0}, 0, v1::ENCODING_FP32, {&pieces[0], 1}},
                                   {{2, 0}, 0, v1::ENCODING_FP32, {&pieces[1], 1}}};
    return shard.Push("job", {worker, incarnation, sequence, step, 1, position}, views);
  }

  // Pushes and waits until the push is durable.
  absl::Status PushDurably(uint32_t worker, uint64_t sequence, uint64_t step, float value) {
    const absl::StatusOr<PushOutcome> outcome = Push(worker, sequence, step, value);
    if (!outcome.ok()) return outcome.status();
    absl::Notification done;
    absl::Status durable;
    shard.AwaitDurable(*outcome, [&](absl::Status status) {
      durable = status;
      done.Notify();
    });
    done.WaitForNotification();
    return durable;
  }

  uint64_t Version() { return shard.Pull({1, 0}, std::nullopt)->version; }

  // All state that later pushes and pulls can observe.
  std::string Fingerprint() {
    std::string text;
    const ShardState capture = shard.Capture([] {});
    for (const auto& slice : capture.slices) {
      absl::StrAppend(&text, slice.key.tensor_id, "/", slice.key.slice_index, " v", slice.weights.version, " a",
                      slice.weights.applied, " p", slice.weights.position.value_or(-1), " s",
                      slice.weights.set_checksum.value_or(0), slice.weights.pushed, " ",
                      slice.policy.fields.SerializeAsString(), ":");
      AppendBytes(slice.policy.sum, text);
      for (const PolicyState::Held& held : slice.policy.held) {
        absl::StrAppend(&text, held.worker, "x", held.examples, ":");
        AppendBytes(held.values, text);
      }
      for (const ValueBuffer& array : slice.weights.arrays) AppendBytes(array, text);
    }
    for (const internal::v1::WindowState& window : capture.windows) absl::StrAppend(&text, window.SerializeAsString());
    return text;
  }

  absl::Status status;
  absl::Notification failed;
  Lines lines;
  ShardStore::Recovered recovered;
  ParameterShard shard;
  std::unique_ptr<ShardStore> store;
};

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

TEST(ShardStoreTest, APullThatWaitedForValuesGoesOnOnceTheyAreOnTheDisk) {
  for (const bool disk_fails : {false, true}) {
    const std::string folder = NewFolder();
    LossyFileSystem files;
    Process process(folder, &files);
    OwnedTensor tensor = Tensor(1, "w", 2);
    tensor.spec.mutable_initializer()->mutable_provided();
    ASSERT_TRUE(process.shard.Declare(Job(v1::Durability::WAL), {tensor}).ok());
    absl::Notification ended;
    absl::Status pulled;
    process.shard.AwaitPull("job", {.step = 0}, {{1, 0}}, absl::Seconds(30), /*by_reader=*/false,
                            [&](absl::Status status) {
                              pulled = std::move(status);
                              ended.Notify();
                            });
    files.FailSyncs(disk_fails);
    const std::vector<float> values = {1, 2};
    const absl::string_view payload(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    ASSERT_TRUE(process.shard.SetValues("job", {{{1, 0}, v1::ENCODING_FP32, {&payload, 1}}}).ok());
    ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
    EXPECT_EQ(pulled.code(), disk_fails ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk) << pulled;
    EXPECT_EQ(process.store->status().synced >= 3, !disk_fails) << "header, declaration, values";
  }
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

TEST(ShardStoreTest, WalSyncLosesNothingThatWasAcknowledgedWhenTheMachineDies) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 30; ++round) {
    LossyFileSystem files;
    const std::string folder = NewFolder();
    uint64_t acknowledged = 0;
    {
      Process process(folder, &files, /*log_bytes=*/20000);
      process.Declare(Job(v1::Durability::WAL_SYNC));
      const uint64_t pushes = 1 + random() % 30;
      for (uint64_t i = 1; i <= pushes; ++i) {
        ASSERT_TRUE(process.PushDurably(0, i, i - 1, i).ok());
        acknowledged = i;
      }
      // The push is not awaited.
      ASSERT_TRUE(process.Push(0, pushes + 1, pushes, 1).ok());
      files.LoseUnsyncedFromNowOn();
    }
    ASSERT_TRUE(files.LoseUnsynced(random()).ok());
    Process process(folder);
    ASSERT_TRUE(process.status.ok()) << round << ": " << process.status;
    EXPECT_GE(process.shard.status().workers_pushes[0].highest, acknowledged) << round;
    EXPECT_EQ(process.shard.status().workers_pushes[0].accepted, process.shard.status().workers_pushes[0].highest)
        << round;
  }
}

// A synchronous job of two workers whose machine fails after both have seen ten steps and `synced` are on the disk.
class LostSecond {
 public:
  explicit LostSecond(uint64_t synced) {
    job_.policy.mutable_sync();
    Process process(folder_, &files_);
    process.Declare(job_);
    for (uint64_t step = 0; step < 10; ++step) {
      for (uint32_t worker : {0u, 1u}) EXPECT_TRUE(process.Push(worker, step + 1, step, 1).ok());
      if (step + 1 == synced) {
        absl::Notification done;
        process.shard.AwaitSynced([&](absl::Status status) {
          EXPECT_TRUE(status.ok()) << status;
          done.Notify();
        });
        done.WaitForNotification();
        files_.LoseUnsyncedFromNowOn();
      }
    }
  }

  std::unique_ptr<Process> ComeBack() {
    EXPECT_TRUE(files_.LoseUnsynced(1).ok());
    auto process = std::make_unique<Process>(folder_);
    EXPECT_TRUE(process->status.ok()) << process->status;
    EXPECT_EQ(process->Version(), 4);
    return process;
  }

  const std::string& folder() const { return folder_; }

 private:
  const std::string folder_ = NewFolder();
  LossyFileSystem files_;
  JobConfig job_ = Job(v1::Durability::WAL);
};

TEST(ShardStoreTest, AShardThatLostItsLastSecondGoesOnAtTheStepOfItsWorkers) {
  LostSecond lost(4);
  std::string before;
  {
    auto process = lost.ComeBack();
    // No worker has reported versions: the push of step 10 itself proves that nine updates were seen.
    ASSERT_TRUE(process->Push(0, 11, 10, 1).ok());
    EXPECT_EQ(process->Version(), 10);
    const absl::StatusOr<PushOutcome> last = process->Push(1, 11, 10, 1);
    ASSERT_TRUE(last.ok()) << last.status();
    EXPECT_EQ(last->applied, 2);
    EXPECT_EQ(process->Version(), 11);
    EXPECT_EQ(process->shard.status().lost_updates, 2 * 6);
    before = process->Fingerprint();
  }
  Process process(lost.folder());
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before) << "the catch-up is in the log";
}

TEST(ShardStoreTest, AppliesARetryOfWhatWasLostAndNoDuplicateOfWhatWasKept) {
  auto process = LostSecond(4).ComeBack();
  const absl::StatusOr<PushOutcome> kept = process->Push(0, 4, 3, 1);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_TRUE(kept->duplicate);
  // Worker 1 got no response to its last push. Worker 0 did, and has seen version 10.
  const absl::StatusOr<PushOutcome> again = process->Push(1, 10, 9, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->duplicate);
  EXPECT_EQ(again->buffered, 2);
  absl::Status waited = absl::UnknownError("still waits");
  process->shard.AwaitPull("job", {10, 1}, {{1, 0}, {2, 0}}, absl::Hours(1), false,
                           [&](absl::Status s) { waited = s; });
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnknown);
  const absl::StatusOr<uint32_t> raised =
      process->shard.ReportVersions("job", 0, 1, {{{1, 0}, 10, 10}, {{2, 0}, 10, 10}});
  ASSERT_TRUE(raised.ok()) << raised.status();
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(process->Version(), 10);
  EXPECT_EQ(process->shard.ReportVersions("job", 0, 1, {{{1, 0}, 10, 10}}).value_or(9), 0);
}

TEST(ShardStoreTest, AShardThatCannotHaveLostAnythingRefusesAStepThatItHasNotSeen) {
  const std::string folder = NewFolder();
  JobConfig job = Job(v1::Durability::WAL_SYNC);
  job.policy.mutable_sync();
  {
    Process process(folder);
    process.Declare(job);
    ASSERT_TRUE(process.PushDurably(0, 1, 0, 1).ok());
  }
  Process process(folder);
  EXPECT_EQ(process.Push(0, 2, 5, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(process.shard.ReportVersions("job", 0, 1, {{{1, 0}, 10, 10}}).value_or(9), 0);
  EXPECT_EQ(process.Version(), 0);
}

TEST(ShardStoreTest, AFullDiskRefusesPushesAndTakesThemAgainLater) {
  LossyFileSystem files;
  Process process(NewFolder(), &files);
  process.Declare(Job(v1::Durability::WAL));
  ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
  const std::string before = process.Fingerprint();
  files.SetFree(100);
  const absl::Status full = process.Push(0, 2, 1, 1).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(full.message(), "No space left on device")) << full;
  EXPECT_TRUE(process.shard.Pull({1, 0}, std::nullopt).ok());
  EXPECT_EQ(process.shard.status().workers_pushes[0].accepted, 1);
  files.SetFree(1 << 20);
  const absl::StatusOr<PushOutcome> again = process.Push(0, 2, 1, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->duplicate);
}

TEST(ShardStoreTest, ALogThatCouldNotBeBegunDoesNotComeBackWhenTheMachineDies) {
  const std::string folder = NewFolder();
  LossyFileSystem files;
  files.ForgetRemovals();
  std::string before;
  {
    Process process(folder, &files);
    process.Declare(Job(v1::Durability::WAL));
    ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
    files.SetFree(10);
    EXPECT_EQ(process.store->TakeSnapshot().code(), absl::StatusCode::kResourceExhausted);
    files.SetFree(1 << 20);
    // The previous file continues at the position at which the new one would have started.
    ASSERT_TRUE(process.Push(0, 2, 1, 1).ok());
    before = process.Fingerprint();
  }
  ASSERT_TRUE(files.LoseUnsynced(1).ok());
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, WritesNoMoreBesideALogThatItCannotRemove) {
  const std::string folder = NewFolder();
  LossyFileSystem files;
  std::string before;
  {
    Process process(folder, &files);
    process.Declare(Job(v1::Durability::WAL));
    ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
    before = process.Fingerprint();
    files.SetFree(10);
    files.FailRenames();
    const absl::Status status = process.store->TakeSnapshot();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "cannot be removed")) << status;
    files.SetFree(1 << 20);
    EXPECT_EQ(process.Push(0, 2, 1, 1).status().code(), absl::StatusCode::kUnavailable);
    process.failed.WaitForNotification();
  }
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, ASyncThatFailsIsNoAcknowledgement) {
  LossyFileSystem files;
  Process process(NewFolder(), &files);
  process.Declare(Job(v1::Durability::WAL_SYNC));
  ASSERT_TRUE(process.PushDurably(0, 1, 0, 1).ok());
  files.FailSyncs(true);
  EXPECT_EQ(process.PushDurably(0, 2, 1, 1).code(), absl::StatusCode::kUnavailable);
  process.failed.WaitForNotification();
  EXPECT_EQ(process.PushDurably(0, 3, 2, 1).code(), absl::StatusCode::kUnavailable);
}

TEST(ShardStoreTest, RefusesTheLogOfAnotherShard) {
  const std::string folder = NewFolder();
  {
    Process process(folder);
    process.Declare(Job(v1::Durability::WAL));
  }
  Process process(folder, PosixFileSystem(), 1 << 28, /*rank=*/1);
  EXPECT_EQ(process.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(process.status.message(), "is the log of shard 0, want shard 1")) << process.status;
}

TEST(ShardStoreTest, RefusesASecondProcessInAFolder) {
  const std::string folder = NewFolder();
  Process first(folder);
  Process second(folder);
  EXPECT_EQ(second.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(second.status.message(), "is in use by another process; each server needs its own"))
      << second.status;
}

TEST(ShardStoreTest, AJobWithoutAFolderIsRefused) {
  ParameterShard shard({}, Clock::Real());
  const absl::Status status = shard.Declare(Job(v1::Durability::WAL), {Tensor(1, "w", 3)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "wants durability WAL, but shard 0 has no state directory"))
      << status;
}

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
