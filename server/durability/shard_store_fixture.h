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
#include "gtest/gtest.h"
#include "server/durability/shard_store.h"

namespace ballast {

inline std::string NewFolder() {
  static int count = 0;
  return absl::StrCat(testing::TempDir(), "/store-", ++count);
}

inline JobConfig Job(v1::Durability::Mode mode, uint32_t workers = 2) {
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

inline void AppendBytes(const ValueBuffer& values, std::string& to) {
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

}  // namespace ballast
