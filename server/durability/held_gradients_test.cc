// SPDX-License-Identifier: Apache-2.0
// Tests that a synchronous slice's held gradients, those of 600 of 601 workers, survive the process.
#include <filesystem>
#include <iostream>
#include <memory>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "common/storage/snapshot_file.h"
#include "gtest/gtest.h"
#include "server/durability/shard_snapshot.h"
#include "server/durability/shard_store_fixture.h"

namespace ballast {
namespace {

constexpr uint32_t kWorkers = 601;
constexpr int64_t kElements = 1044480;

absl::Status Push(ParameterShard& shard, uint32_t worker) {
  std::vector<float> values(kElements);
  for (int64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>((i + worker) % 97) * 0.01f;
  const absl::string_view piece = BytesOf(values);
  const GradientView view{{1, 0}, 0, v1::ENCODING_FP32, {&piece, 1}};
  return shard.Push("job", {worker, 1, 1, 0, 1 + worker % 3}, {&view, 1}).status();
}

TEST(HeldGradientsTest, OfAFullSliceAndSixHundredWorkersComeBackToTheBit) {
  JobConfig job = Job(v1::Durability::NONE, kWorkers);
  job.policy.mutable_sync()->set_deterministic(true);
  OwnedTensor tensor = Tensor(1, "w", kElements);
  tensor.spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1f);
  const std::string path = testing::TempDir() + "/held.snapshot";
  std::filesystem::remove(path);
  std::vector<float> want;
  {
    ParameterShard shard({}, Clock::Real());
    ASSERT_TRUE(shard.Declare(job, {tensor}).ok());
    for (uint32_t worker = 1; worker < kWorkers; ++worker) ASSERT_TRUE(Push(shard, worker).ok());
    const absl::Time start = absl::Now();
    const ShardState capture = shard.Capture([] {});
    std::cout << "captured in " << absl::Now() - start << std::endl;
    // The capture shares the gradients and does not copy them.
    EXPECT_LT(absl::Now() - start, absl::Milliseconds(200));
    EXPECT_EQ(capture.slices[0].policy.held.size(), kWorkers - 1);
    const SnapshotPlace place{.shard = 0, .position = 9};
    ASSERT_TRUE(WriteSnapshot(PosixFileSystem(), path, place, capture).ok());
    ASSERT_THAT(VerifySnapshot(path, place, capture), IsOk());
    ASSERT_TRUE(Push(shard, 0).ok());
    const auto values = shard.Pull({1, 0}, std::nullopt);
    want.assign(values->values.values().begin(), values->values.values().end());
  }
  EXPECT_GT(std::filesystem::file_size(path), uint64_t{600} * kElements * sizeof(float));
  ParameterShard shard({}, Clock::Real());
  {
    const auto reader = SnapshotReader::Open(path);
    ASSERT_THAT(reader, IsOk());
    ShardState capture = ToCapture((*reader)->header());
    auto slice = (*reader)->Next();
    ASSERT_THAT(slice, IsOk());
    capture.slices.push_back(ToSliceEntry(std::get<SnapshotSlice>(**std::move(slice))));
    ASSERT_THAT(shard.Restore(std::move(capture)), IsOk());
  }
  std::filesystem::remove(path);
  ASSERT_TRUE(Push(shard, 0).ok());
  const auto values = shard.Pull({1, 0}, std::nullopt);
  EXPECT_TRUE(std::equal(want.begin(), want.end(), values->values.values().begin()));
}

}  // namespace
}  // namespace ballast
