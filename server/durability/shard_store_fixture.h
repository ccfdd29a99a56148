// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/concurrency/clock.h"
#include "common/status/testing/status_matcher.h"
#include "common/storage/testing/lossy_file_system.h"
#include "gtest/gtest.h"
#include "server/durability/shard_store.h"

namespace ballast {

inline std::string NewFolder() {
  static int count = 0;
  return absl::StrCat(testing::TempDir(), "/store-", ++count);
}

inline JobConfig Job(v1::Durability::Mode mode = v1::Durability::WAL, uint32_t workers = 2) {
  JobConfig job{"job", {}, workers, {}};
  job.policy.mutable_async();
  job.durability.set_mode(mode);
  return job;
}

inline OwnedTensor Tensor(uint32_t id, const std::string& name, int64_t elements) {
  OwnedTensor tensor;
  tensor.spec.set_id(id);
  tensor.spec.set_name(name);
  tensor.spec.add_shape(elements);
  tensor.spec.mutable_optimizer()->mutable_momentum()->set_learning_rate(0.1f);
  tensor.spec.mutable_optimizer()->mutable_momentum()->set_momentum(0.9f);
  return tensor;
}

inline absl::string_view BytesOf(absl::Span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
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
                   absl::Duration first_retry = absl::Milliseconds(1))
      : shard({.open_journal = [this](const JobConfig& job) { return store->Start(job); }}, Clock::Real()) {
    ShardStore::Options options;
    options.folder = folder;
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
    ASSERT_THAT(shard.Declare(job, {Tensor(1, "w", 300), Tensor(2, "b", 7)}), IsOk());
  }

  absl::StatusOr<PushOutcome> Push(uint32_t worker, uint64_t sequence, uint64_t step, float value,
                                   uint64_t incarnation = 1, std::optional<double> position = std::nullopt) {
    std::vector<float> w(300), b(7, value);
    for (size_t i = 0; i < w.size(); ++i) w[i] = value + i;
    const absl::string_view pieces[2] = {BytesOf(w), BytesOf(b)};
    const GradientView views[2] = {{{1, 0}, 0, v1::ENCODING_FP32, {&pieces[0], 1}},
                                   {{2, 0}, 0, v1::ENCODING_FP32, {&pieces[1], 1}}};
    return shard.Push("job", {worker, incarnation, sequence, step, 1, position}, views);
  }

  // Pushes of worker 0, one for each step.
  void PushSteps(uint64_t first, uint64_t last) {
    for (uint64_t i = first; i <= last; ++i) ASSERT_THAT(Push(0, i, i - 1, 0.1f * i), IsOk());
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
      absl::StrAppend(&text, BytesOf(slice.policy.sum.values()));
      for (const PolicyState::Held& held : slice.policy.held) {
        absl::StrAppend(&text, held.worker, "x", held.examples, ":", BytesOf(held.values.values()));
      }
      for (const ValueBuffer& array : slice.weights.arrays) absl::StrAppend(&text, BytesOf(array.values()));
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

// Processes that follow each other in one state directory: each ends when the next one starts.
class ShardStoreTest : public testing::Test {
 protected:
  Process& Start(FileSystem* files = PosixFileSystem(), uint64_t log_bytes = 1 << 28) {
    process_.reset();
    process_ = std::make_unique<Process>(folder_, files, log_bytes);
    EXPECT_THAT(process_->status, IsOk());
    return *process_;
  }

  Process& StartJob(const JobConfig& job = Job(), FileSystem* files = PosixFileSystem(), uint64_t log_bytes = 1 << 28) {
    Start(files, log_bytes).Declare(job);
    return *process_;
  }

  // Returns the last state of the process.
  std::string End() {
    const std::string state = process_->Fingerprint();
    process_.reset();
    return state;
  }

  Process& ExpectRecovers(const std::string& state, uint64_t log_bytes = 1 << 28) {
    EXPECT_EQ(Start(PosixFileSystem(), log_bytes).Fingerprint(), state);
    return *process_;
  }

  std::string folder_ = NewFolder();
  LossyFileSystem files_;
  std::unique_ptr<Process> process_;
};

}  // namespace ballast
