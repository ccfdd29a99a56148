// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_store.h"

#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/run/file.h"
#include "common/storage/framed_message.h"
#include "common/storage/testing/lossy_file_system.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

std::string NewFolder() {
  static int count = 0;
  return absl::StrCat(testing::TempDir(), "/store-", ++count);
}

JobTerms Job(v1::Durability::Mode mode, uint32_t workers = 2) {
  JobTerms job{"job", {}, workers, {}};
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

// A shard with its folder, as a server holds them.
struct Process {
  explicit Process(const std::string& folder, FileSystem* files = PosixFileSystem(), uint64_t log_bytes = 1 << 28,
                   uint32_t rank = 0)
      : shard(
            [&] {
              ParameterShard::Options options;
              options.rank = rank;
              options.open_journal = [this](const JobTerms& job) { return store->Start(job); };
              return options;
            }(),
            Clock::Real()) {
    ShardStore::Options options;
    options.folder = folder;
    options.shard = rank;
    options.log_bytes = log_bytes;
    options.file_bytes = 4096;
    options.on_failure = [this](absl::Status) { failed.Notify(); };
    absl::StatusOr<std::unique_ptr<ShardStore>> opened = ShardStore::Open(std::move(options), files, &shard);
    status = opened.status();
    if (!opened.ok()) return;
    store = *std::move(opened);
    absl::StatusOr<ShardStore::Recovered> found = store->Recover();
    status = found.status();
    if (found.ok()) recovered = *found;
  }

  void Declare(const JobTerms& job) {
    const auto owned = shard.Declare(job, {Tensor(1, "w", 300), Tensor(2, "b", 7)});
    ASSERT_TRUE(owned.ok()) << owned.status();
  }

  absl::StatusOr<PushOutcome> Push(uint32_t worker, uint64_t sequence, uint64_t step, float value,
                                   uint64_t incarnation = 1) {
    std::vector<float> w(300), b(7, value);
    for (size_t i = 0; i < w.size(); ++i) w[i] = value + i;
    const absl::string_view pieces[2] = {{reinterpret_cast<const char*>(w.data()), w.size() * 4},
                                         {reinterpret_cast<const char*>(b.data()), b.size() * 4}};
    const GradientView views[2] = {{{1, 0}, 0, v1::ENCODING_FP32, {&pieces[0], 1}},
                                   {{2, 0}, 0, v1::ENCODING_FP32, {&pieces[1], 1}}};
    return shard.Push("job", {worker, incarnation, sequence, step, 1}, views);
  }

  // Pushes and waits until the answer may be given.
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

  // Everything that a later push or pull could tell from another shard.
  std::string Fingerprint() {
    std::string text;
    const ShardCapture capture = shard.Capture([] {});
    for (const auto& slice : capture.slices) {
      absl::StrAppend(&text, slice.key.tensor_id, "/", slice.key.slice_index, " v", slice.weights.version, " a",
                      slice.weights.applied, " ", slice.policy.SerializeAsString(), ":");
      for (const ValueBuffer& array : slice.weights.arrays) {
        text.append(reinterpret_cast<const char*>(array.values().data()), array.size() * sizeof(float));
      }
    }
    for (const internal::v1::WindowState& window : capture.windows) absl::StrAppend(&text, window.SerializeAsString());
    return text;
  }

  absl::Status status;
  absl::Notification failed;
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
    // As a shard wrote it that checked, recorded and ordered in three steps.
    const std::vector<std::string> names = *PosixFileSystem()->List(folder);
    uint64_t first = 0;
    ASSERT_TRUE(absl::SimpleAtoi(absl::StripPrefix(names.back(), "log-"), &first) ||
                absl::SimpleAtoi(absl::StripPrefix(names[names.size() - 2], "log-"), &first));
    const std::string path = absl::StrFormat("%s/log-%020d", folder, first);
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
    const absl::string_view behind = *ParseFramed(bodies.back(), push);
    ASSERT_TRUE(push.has_push());
    push.mutable_push()->set_incarnation(1);
    pause.mutable_pause()->set_incarnation(1);
    bodies.push_back(absl::StrCat(FrameMessage(push), behind));
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
    // Each thread is a life of worker 0 that does not know of the later ones.
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
  JobTerms job = Job(v1::Durability::WAL, 3);
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

TEST(ShardStoreTest, KeepsTheClocksOfBoundedWorkers) {
  const std::string folder = NewFolder();
  JobTerms job = Job(v1::Durability::WAL, 3);
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
    // About three pushes are a file, and two files are kept.
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
  // A snapshot, the lock, the log and its spares.
  EXPECT_LE(files.List(folder)->size(), 5);
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_LE(process.recovered.records, 2);
  // Old records behind the log's end are nothing that a crash left.
  EXPECT_EQ(process.recovered.cut_bytes, 0);
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, ReplaysPushesThatCameAtOnceInTheOrderInWhichTheyWereApplied) {
  const std::string folder = NewFolder();
  std::string before;
  {
    // Snapshots are taken meanwhile, whenever the log is long.
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
      // Not waited for.
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
  EXPECT_TRUE(absl::StrContains(second.status.message(), "another process uses it")) << second.status;
}

TEST(ShardStoreTest, AJobWithoutAFolderIsRefused) {
  ParameterShard shard({}, Clock::Real());
  const absl::Status status = shard.Declare(Job(v1::Durability::WAL), {Tensor(1, "w", 3)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "wants durability WAL, but shard 0 has no folder")) << status;
}

// Every file of the folder, by name.
std::vector<std::pair<std::string, std::string>> Files(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> files;
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem()->List(folder);
  for (const std::string& name : *names) {
    if (name != "lock") files.emplace_back(name, *ReadFile(absl::StrCat(folder, "/", name)));
  }
  return files;
}

// Without what a file of the log has of its former life. Files that wait to be written anew have nothing else.
size_t UsedBytes(const std::string& folder, const std::string& name, size_t size) {
  const std::vector<std::string> names = *PosixFileSystem()->List(folder);
  uint64_t first = 0, snapshot = 0;
  if (!absl::SimpleAtoi(absl::StripPrefix(name, "log-"), &first)) return size;
  if (!absl::SimpleAtoi(absl::StripPrefix(names.back(), "snapshot-"), &snapshot) || first <= snapshot) return 0;
  const auto reader = RecordReader::Open(absl::StrCat(folder, "/", name), first);
  while ((*reader)->Next()->has_value()) {
  }
  return (*reader)->end();
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
    ASSERT_NE(state, states.end()) << "round " << round << ": loaded what never was";
    ++(state + 1 == states.end() ? harmless : cut);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(cut, 0);
  // Padding, and the end that only the last file has.
  EXPECT_LT(harmless, 40);
}

}  // namespace
}  // namespace ballast
