// SPDX-License-Identifier: Apache-2.0
#include "server/tables/sparse_table.h"

#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "server/tables/range/table_fixture.h"

namespace ballast {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr int kDim = 4;

// A whole table of 16 ranges with rows of 4 weights and 1 slot.
class SparseTableTest : public testing::Test {
 protected:
  static SparseTableOptions Options() { return {kDim, 1, 4, 0, 16}; }

  // Pushes a gradient of ones for each hash, with rate 0.5.
  BatchOutcome Push(const std::vector<uint64_t>& hashes, const std::vector<uint32_t>& versions = {},
                    bool scale_by_staleness = false) {
    const std::vector<float> gradients(hashes.size() * kDim, 1.0f);
    return table_.Push(
        {hashes, gradients.data(), versions, 1, 0.5f, scale_by_staleness, {++step_}, &optimizer_, &initializer_});
  }

  // First weight of each row, by hash.
  std::vector<float> Pull(const std::vector<uint64_t>& hashes, std::vector<uint32_t>* versions = nullptr,
                          bool zeros = false) {
    std::vector<float> values(hashes.size() * kDim, -1.0f);
    if (versions != nullptr) versions->resize(hashes.size());
    table_.Pull({hashes, zeros ? nullptr : &initializer_, values.data(), versions ? versions->data() : nullptr});
    std::vector<float> first;
    for (size_t i = 0; i < hashes.size(); ++i) {
      for (int j = 1; j < kDim; ++j) EXPECT_EQ(values[i * kDim + j], values[i * kDim]);
      first.push_back(values[i * kDim]);
    }
    return first;
  }

  const CountingSgd optimizer_{};
  const LowBitsInitializer initializer_{};
  PageArena arena_{256 * kMiB};
  SparseTable table_{&arena_, Options()};
  uint32_t step_ = 0;
};

TEST_F(SparseTableTest, APullOfMissingRowsGivesInitialValuesAndCreatesNothing) {
  std::vector<uint32_t> versions;
  EXPECT_EQ(Pull({1, 2, 0xf000000000000003}, &versions), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(versions, (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_EQ(Pull({1, 2}, nullptr, /*zeros=*/true), (std::vector<float>{0, 0}));
  EXPECT_EQ(table_.rows(), 0u);
  EXPECT_EQ(arena_.segment_bytes(), 0u);
}

TEST_F(SparseTableTest, APushCreatesRowsFromTheirInitialValues) {
  const BatchOutcome outcome = Push({1, 2, 0xf000000000000003});
  EXPECT_EQ(outcome.created, 3u);
  EXPECT_EQ(outcome.applied, 3u);
  std::vector<uint32_t> versions;
  EXPECT_EQ(Pull({0, 1, 2, 0xf000000000000003}, &versions), (std::vector<float>{0, 0.5, 1.5, 2.5}));
  EXPECT_EQ(versions, (std::vector<uint32_t>{0, 1, 1, 1}));
}

TEST_F(SparseTableTest, APushUpdatesWeightsSlotsVersionAndStep) {
  Push({5});
  const BatchOutcome outcome = Push({5, 6});
  EXPECT_EQ(outcome.created, 1u);
  EXPECT_EQ(outcome.applied, 2u);
  int rows = 0;
  table_.ForEachRow(0, [&](const RowView& row) {
    EXPECT_EQ(row.weights, (std::vector<float>(kDim, row.hash == 5 ? 4.0f : 5.5f)));
    EXPECT_EQ(row.slots, (std::vector<float>{row.hash == 5 ? 2.0f : 1.0f}));
    EXPECT_EQ(row.state.version, row.hash == 5 ? 2u : 1u);
    EXPECT_EQ(row.state.last_step, 2u);
    ++rows;
  });
  EXPECT_EQ(rows, 2);
}

TEST_F(SparseTableTest, StalenessIsCountedByRow) {
  for (int i = 0; i < 3; ++i) Push({5});
  const BatchOutcome outcome = Push({5, 6}, {0, 0});
  EXPECT_EQ(outcome.max_staleness, 3u);
  EXPECT_EQ(Pull({5, 6}), (std::vector<float>{3, 5.5}));
}

TEST_F(SparseTableTest, StalenessDividesTheLearningRateOfItsRow) {
  Push({7});
  Push({7}, {0}, /*scale_by_staleness=*/true);
  EXPECT_EQ(Pull({7}), (std::vector<float>{6.25}));
}

TEST_F(SparseTableTest, AVersionThatTheRowHasNotReachedCountsAsOrphaned) {
  for (int i = 0; i < 3; ++i) Push({5});
  ASSERT_TRUE(table_.Erase(5));
  const BatchOutcome outcome = Push({5, 6}, {3, 0}, /*scale_by_staleness=*/true);
  EXPECT_EQ(outcome.orphaned, 1u);
  EXPECT_EQ(outcome.applied, 2u);
  EXPECT_EQ(outcome.max_staleness, 0u);
  EXPECT_EQ(Pull({5}), (std::vector<float>{4.5}));
}

TEST_F(SparseTableTest, AnErasedRowIsMissingAndComesBackNew) {
  Push({5});
  Push({5});
  EXPECT_TRUE(table_.Erase(5));
  EXPECT_FALSE(table_.Erase(5));
  EXPECT_EQ(Pull({5}), (std::vector<float>{5}));
  Push({5});
  table_.ForEachRow(0, [](const RowView& row) {
    EXPECT_EQ(row.slots, (std::vector<float>{1}));
    EXPECT_EQ(row.state.version, 1u);
  });
}

TEST_F(SparseTableTest, ARefusedRowLeavesTheOthersApplied) {
  PageArena small(2 * kMiB);
  SparseTable table(&small, Options());
  const std::vector<uint64_t> hashes = HashesOfRows(60'000);
  const std::vector<float> gradients(hashes.size() * kDim, 1.0f);
  const BatchPush push = {hashes, gradients.data(), {}, 1, 0.5f, false, {1}, &optimizer_, &initializer_};
  const BatchOutcome first = table.Push(push);
  EXPECT_GT(first.refused, 0u);
  EXPECT_GT(first.created, 25'000u);
  EXPECT_EQ(first.created + first.refused, 60'000u);
  EXPECT_EQ(table.rows(), first.created);
  EXPECT_EQ(small.page_bytes(), 2 * kMiB);
  // The rows that exist go on.
  const BatchOutcome second = table.Push(push);
  EXPECT_EQ(second.applied, first.created);
  EXPECT_EQ(second.created, 0u);
  EXPECT_EQ(second.refused, first.refused);
}

TEST_F(SparseTableTest, ForEachRowIsAscendingByHashWithinTheRange) {
  const std::vector<uint64_t> hashes = HashesOfRows(10'000);
  Push(hashes);
  std::vector<uint64_t> seen;
  for (uint32_t range = 0; range < 16; ++range) {
    table_.ForEachRow(range, [&](const RowView& row) { seen.push_back(row.hash); });
  }
  EXPECT_EQ(seen, hashes);
}

TEST_F(SparseTableTest, RejectsHashesThatDoNotAscend) {
  EXPECT_TRUE(table_.CheckHashes({}).ok());
  EXPECT_TRUE(table_.CheckHashes({0, 1, 0xffffffffffffffff}).ok());
  EXPECT_EQ(table_.CheckHashes({1, 1}).message(),
            "row 1 has hash 0000000000000001, want more than 0000000000000001, the hash before it");
  EXPECT_EQ(table_.CheckHashes({0, 2, 1}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SparseTableTest, RejectsHashesOfOtherShards) {
  SparseTable part(&arena_, {kDim, 1, 4, 3, 2});
  EXPECT_TRUE(part.CheckHashes({0x3000000000000000, 0x4fffffffffffffff}).ok());
  EXPECT_EQ(part.CheckHashes({0x2fffffffffffffff}).message(), "row 0 is in range 2, want a range from 3 to 4");
  EXPECT_EQ(part.CheckHashes({0x3000000000000000, 0x5000000000000000}).message(),
            "row 1 is in range 5, want a range from 3 to 4");
}

TEST_F(SparseTableTest, APartOfTheRangesHoldsTheirRows) {
  SparseTable part(&arena_, {kDim, 1, 4, 3, 2});
  const std::vector<uint64_t> hashes = {0x3000000000000001, 0x4000000000000002};
  const std::vector<float> gradients(hashes.size() * kDim, 1.0f);
  part.Push({hashes, gradients.data(), {}, 1, 0.5f, false, {1}, &optimizer_, &initializer_});
  int rows = 0;
  part.ForEachRow(4, [&](const RowView& row) {
    EXPECT_EQ(row.hash, 0x4000000000000002u);
    ++rows;
  });
  EXPECT_EQ(rows, 1);
}

TEST_F(SparseTableTest, AMillionRowsTakeLittleMoreThanTheirIndexAndNumbers) {
  Push(HashesOfRows(1'000'000));
  // A row has 32 bytes. An index entry has 16 to 20; segments add at most a quarter.
  EXPECT_EQ(table_.rows(), 1'000'000u);
  EXPECT_GE(table_.memory_bytes(), 48'000'000u);
  EXPECT_LE(table_.memory_bytes(), 56'000'000u);
}

TEST_F(SparseTableTest, EqualsAMapAfterRandomMessages) {
  std::map<uint64_t, float> map;
  std::mt19937_64 random(3);
  const std::vector<uint64_t> all = HashesOfRows(5000);
  for (int message = 0; message < 300; ++message) {
    std::vector<uint64_t> hashes;
    for (uint64_t hash : all) {
      if (random() % 8 == 0) hashes.push_back(hash);
    }
    Push(hashes);
    for (uint64_t hash : hashes) map.try_emplace(hash, hash & 7).first->second -= 0.5f;
    for (int i = 0; i < 100; ++i) {
      const uint64_t hash = all[random() % all.size()];
      ASSERT_EQ(table_.Erase(hash), map.erase(hash) == 1);
    }
    const std::vector<float> values = Pull(all);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto found = map.find(all[i]);
      ASSERT_EQ(values[i], found == map.end() ? all[i] & 7 : found->second);
    }
  }
  EXPECT_EQ(table_.rows(), map.size());
}

TEST_F(SparseTableTest, ThreadsThatPullAndPushSeeWholeRowsAndLoseNoUpdate) {
  constexpr int kThreads = 4, kMessages = 50;
  const std::vector<uint64_t> hashes = HashesOfRows(2000);
  const std::vector<float> gradients(hashes.size() * kDim, 1.0f);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      const BatchPush push = {hashes, gradients.data(), {}, 1, 0.5f, false, {1}, &optimizer_, &initializer_};
      for (int message = 0; message < kMessages; ++message) {
        table_.Push(push);
        // Pull expects equal weights within a row.
        Pull(hashes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<float> values = Pull(hashes);
  for (size_t i = 0; i < hashes.size(); ++i) ASSERT_EQ(values[i], (hashes[i] & 7) - 0.5f * kThreads * kMessages);
}

// Changes that wait for each other, and pulls, each of several ranges in different sets.
TEST_F(SparseTableTest, OrderedPushesAndPullsOfManyRangesAllEnd) {
  constexpr int kPushes = 20000;
  absl::Mutex order;
  std::atomic<bool> over{false};
  const auto choose = [](std::mt19937& random) {
    std::vector<uint64_t> hashes;
    for (uint64_t range = 0; range < 16; ++range) {
      if (random() % 4 == 0) hashes.push_back(range << 60 | random() % 8);
    }
    return hashes;
  };
  std::vector<std::thread> threads;
  for (int pusher = 0; pusher < 3; ++pusher) {
    threads.emplace_back([&, pusher] {
      std::mt19937 random(pusher);
      for (int i = 0; i < kPushes; ++i) {
        const std::vector<uint64_t> hashes = choose(random);
        const std::vector<float> gradients(hashes.size() * kDim, 1.0f);
        std::vector<uint64_t> places;
        {
          absl::MutexLock lock(&order);
          places = table_.ReserveOrder(hashes);
        }
        table_.Push({hashes, gradients.data(), {}, 1, 0.5f, false, {1}, &optimizer_, &initializer_, places});
      }
    });
  }
  for (int puller = 0; puller < 2; ++puller) {
    threads.emplace_back([&, puller] {
      std::mt19937 random(100 + puller);
      while (!over) {
        const std::vector<uint64_t> hashes = choose(random);
        std::vector<float> values(hashes.size() * kDim);
        table_.Pull({hashes, &initializer_, values.data(), nullptr});
      }
    });
  }
  for (int i = 0; i < 3; ++i) threads[i].join();
  over = true;
  for (size_t i = 3; i < threads.size(); ++i) threads[i].join();
}

}  // namespace
}  // namespace ballast
