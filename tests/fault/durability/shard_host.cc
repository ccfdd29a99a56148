// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/durability/shard_host.h"

#include "absl/synchronization/notification.h"
#include "common/codecs/codec.h"
#include "common/concurrency/clock.h"
#include "tests/testing/tensors.h"

namespace ballast {
namespace {

constexpr uint32_t kCounts = 1, kSums = 2;
constexpr uint32_t kSumElements = 16;

// The amount that push `number` of a worker adds to an element: -3 to 3.
int64_t Addend(uint32_t worker, uint64_t number, uint32_t element) {
  return static_cast<int64_t>(CodecSeed({worker, number, element}) % 7) - 3;
}

absl::string_view BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace

ShardHost::ShardHost(Options options) : options_(std::move(options)) {
  ParameterShard::Options shard;
  shard.open_journal = [this](const JobConfig& job) { return store_->Start(job); };
  shard_ = std::make_unique<ParameterShard>(std::move(shard), Clock::Real());
}

absl::StatusOr<std::unique_ptr<ShardHost>> ShardHost::Open(Options options, FileSystem* files) {
  std::unique_ptr<ShardHost> host(new ShardHost(std::move(options)));
  absl::Status status = host->Recover(files);
  if (status.ok()) status = host->Declare();
  if (!status.ok()) return status;
  return host;
}

absl::Status ShardHost::Recover(FileSystem* files) {
  ShardStore::Options options;
  options.folder = options_.folder;
  options.log_bytes = options_.log_bytes;
  options.file_bytes = options_.file_bytes;
  options.on_failure = [](absl::Status) {};
  auto store = ShardStore::Open(std::move(options), files, shard_.get());
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  return store_->Recover().status();
}

absl::Status ShardHost::Declare() {
  JobConfig job;
  job.name = "host";
  job.policy.mutable_async();
  job.workers = options_.workers;
  job.durability.set_mode(options_.mode);
  return shard_
      ->Declare(job, {{SgdSpec(kCounts, "counts", options_.workers), {}}, {SgdSpec(kSums, "sums", kSumElements), {}}})
      .status();
}

absl::Status ShardHost::Push(uint32_t worker, uint64_t number) {
  std::vector<float> counts(options_.workers), sums(kSumElements);
  counts[worker] = 1;
  for (uint32_t i = 0; i < kSumElements; ++i) sums[i] = static_cast<float>(Addend(worker, number, i));
  const absl::string_view pieces[2] = {BytesOf(counts), BytesOf(sums)};
  const GradientView views[2] = {{{kCounts, 0}, 0, v1::ENCODING_FP32, {&pieces[0], 1}},
                                 {{kSums, 0}, 0, v1::ENCODING_FP32, {&pieces[1], 1}}};
  const absl::StatusOr<PushOutcome> outcome = shard_->Push("host", {worker, 1, number, number - 1, 1}, views);
  if (!outcome.ok()) return outcome.status();
  absl::Notification done;
  absl::Status durable;
  shard_->AwaitDurable(*outcome, [&](absl::Status status) {
    durable = std::move(status);
    done.Notify();
  });
  done.WaitForNotification();
  return durable;
}

absl::StatusOr<std::vector<uint64_t>> ShardHost::Applied() {
  std::vector<uint64_t> applied(options_.workers);
  std::vector<int64_t> sums(kSumElements), want(kSumElements);
  const ShardState capture = shard_->Capture([] {});
  for (const ShardState::SliceEntry& slice : capture.slices) {
    const auto values = slice.weights.arrays.at(0).values();
    for (size_t i = 0; i < values.size(); ++i) {
      if (slice.key.tensor_id == kCounts) applied[i] = static_cast<uint64_t>(-values[i]);
      if (slice.key.tensor_id == kSums) sums[i] = static_cast<int64_t>(-values[i]);
    }
  }
  for (uint32_t worker = 0; worker < options_.workers; ++worker) {
    for (uint64_t number = 1; number <= applied[worker]; ++number) {
      for (uint32_t i = 0; i < kSumElements; ++i) want[i] += Addend(worker, number, i);
    }
  }
  if (sums != want) return absl::DataLossError("the weights do not match the counted pushes");
  return applied;
}

}  // namespace ballast
