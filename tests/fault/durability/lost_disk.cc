// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/storage/testing/lossy_file_system.h"
#include "tests/fault/durability/disk_faults.h"
#include "tests/fault/durability/shard_host.h"

namespace ballast {
namespace {

// Owns the acknowledged pushes of one life of the machine, which ends after `death` of them.
// Thread safety: all methods may be called from any thread.
class PushRecords {
 public:
  PushRecords(uint32_t workers, uint64_t death) : acknowledged_(workers), death_(death) {}

  // Returns true if the machine was still alive; the push then counts.
  bool Note(uint32_t worker) {
    absl::MutexLock lock(&mutex_);
    if (dead_) return false;
    acknowledged_[worker].push_back(absl::Now());
    dead_ = ++count_ >= death_;
    return true;
  }

  void AwaitDeath() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&dead_));
  }

  // Times at which pushes were acknowledged, per worker and in order.
  std::vector<std::vector<absl::Time>> acknowledged() const {
    absl::MutexLock lock(&mutex_);
    return acknowledged_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::vector<absl::Time>> acknowledged_ ABSL_GUARDED_BY(mutex_);
  const uint64_t death_;
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dead_ ABSL_GUARDED_BY(mutex_) = false;
};

class Rounds {
 public:
  explicit Rounds(const LostDiskOptions& options) : options_(options), random_(options.seed) {
    host_.folder = options.folder;
    host_.mode = options.mode;
    host_.workers = options.workers;
    counts_.mode = options.mode;
  }

  absl::StatusOr<LostDiskCounts> Do() {
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      std::filesystem::remove_all(options_.folder);
      if (absl::Status status = LiveAndDie(); !status.ok()) return status;
      ++counts_.rounds;
    }
    return counts_;
  }

 private:
  absl::Status LiveAndDie() {
    LossyFileSystem files;
    PushRecords records(options_.workers, 1 + random_() % options_.most_pushes);
    absl::Time death;
    {
      auto host = ShardHost::Open(host_, &files);
      if (!host.ok()) return host.status();
      std::vector<std::thread> threads;
      for (uint32_t worker = 0; worker < options_.workers; ++worker) {
        threads.emplace_back([&, worker] {
          for (uint64_t number = 1; (*host)->Push(worker, number).ok() && records.Note(worker); ++number) {
          }
        });
      }
      // Later acknowledgements do not count: those that count were given while the disk was alive.
      records.AwaitDeath();
      death = absl::Now();
      files.LoseUnsyncedFromNowOn();
      for (std::thread& thread : threads) thread.join();
    }
    if (absl::Status status = files.LoseUnsynced(random_()); !status.ok()) return status;
    return Compare(records.acknowledged(), death);
  }

  absl::Status Compare(const std::vector<std::vector<absl::Time>>& acknowledged, absl::Time death) {
    LossyFileSystem files;
    auto host = ShardHost::Open(host_, &files);
    if (!host.ok()) return host.status();
    const auto applied = (*host)->Applied();
    if (!applied.ok()) return applied.status();
    for (uint32_t worker = 0; worker < options_.workers; ++worker) {
      const std::vector<absl::Time>& times = acknowledged[worker];
      counts_.acknowledged += times.size();
      for (uint64_t number = (*applied)[worker]; number < times.size(); ++number) {
        ++counts_.lost;
        counts_.oldest_lost_seconds =
            std::max(counts_.oldest_lost_seconds, absl::ToDoubleSeconds(death - times[number]));
      }
      // Sends them again from the last one present to the one without a response; each must be present once.
      for (uint64_t number = std::max<uint64_t>((*applied)[worker], 1); number <= times.size() + 1; ++number) {
        if (absl::Status status = (*host)->Push(worker, number); !status.ok()) return status;
      }
      const auto again = (*host)->Applied();
      if (!again.ok()) return again.status();
      counts_.duplicated += (*again)[worker] - std::max<uint64_t>((*applied)[worker], times.size() + 1);
    }
    return absl::OkStatus();
  }

  const LostDiskOptions options_;
  ShardHost::Options host_;
  std::mt19937_64 random_;
  LostDiskCounts counts_;
};

}  // namespace

void LostDiskCounts::Add(const LostDiskCounts& other) {
  AddFields(other, *this);
  mode = other.mode;
  oldest_lost_seconds = std::max(oldest_lost_seconds, other.oldest_lost_seconds);
}

nlohmann::ordered_json LostDiskCounts::ToJson() const {
  nlohmann::ordered_json json = JsonOf(*this);
  json["oldest_lost_seconds"] = oldest_lost_seconds;
  return json;
}

absl::StatusOr<LostDiskCounts> LoseDisks(const LostDiskOptions& options) { return Rounds(options).Do(); }

}  // namespace ballast
