// SPDX-License-Identifier: Apache-2.0
#include "server/tables/watch/row_publishers.h"

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/codecs/codec.h"
#include "common/tables/row_chain.h"
#include "common/tables/row_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tables/range/table_fixture.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTable = 5;
constexpr uint32_t kDim = 2;
constexpr int kRangeBits = 2;
constexpr uint32_t kRanges = 1 << kRangeBits;

using Rows = std::map<uint64_t, std::vector<float>>;

// Applies deltas as the protocol says, and fails the test if one does not follow on the last.
class Reader {
 public:
  void Take(const std::vector<EncodedDelta>& deltas) {
    for (const EncodedDelta& delta : deltas) {
      v1::WatchRowsResponse response;
      ASSERT_TRUE(response.ParseFromString(absl::StrCat(delta.head, *delta.body)));
      ASSERT_EQ(response.deltas_size(), 1) << "a delta is one field of a response";
      ASSERT_NO_FATAL_FAILURE(Take(response.deltas(0)));
    }
  }

  // Takes everything that there is now.
  void Drain(RowWatch& watch, size_t max_bytes = 1 << 20) {
    for (auto next = watch.Next(max_bytes); !next.empty(); next = watch.Next(max_bytes)) {
      ASSERT_NO_FATAL_FAILURE(Take(next));
    }
  }

  Rows rows() const {
    Rows all;
    for (const auto& [range, rows] : ranges_) all.insert(rows.begin(), rows.end());
    return all;
  }
  absl::flat_hash_map<uint32_t, WatchedPosition> positions() const { return positions_; }

  // Number of ranges received whole, of other deltas, and of parts.
  int wholes = 0, deltas = 0, parts = 0;
  // Ids in deltas, and evicted ones.
  size_t ids = 0, evicted = 0;

 private:
  void Take(const v1::RowDelta& delta) {
    WatchedPosition& at = positions_[delta.range()];
    ASSERT_EQ(delta.table_id(), kTable);
    if (!inside_) {
      ASSERT_TRUE(delta.from_position() == 0 || delta.from_position() == at.position) << delta.ShortDebugString();
      ++(delta.from_position() == 0 ? wholes : deltas);
      if (delta.from_position() == 0) {
        at = {};
        ranges_[delta.range()].clear();
      }
    }
    ++parts;
    ids += delta.ids().size() / 8;
    evicted += delta.evicted().size() / 8;
    ASSERT_EQ(delta.chain(), NextRowChain(at.chain, delta.ids(), delta.evicted(), delta.payload()));
    at.chain = delta.chain();
    inside_ = delta.continues();
    if (!inside_) at.position = delta.to_position();
    Set(delta, ranges_[delta.range()]);
  }

  static void Set(const v1::RowDelta& delta, Rows& rows) {
    for (size_t at = 0; at < delta.evicted().size(); at += 8) {
      uint64_t id = 0;
      std::memcpy(&id, &delta.evicted()[at], 8);
      rows.erase(id);
    }
    const size_t count = delta.ids().size() / 8;
    std::vector<float> values(count * kDim);
    const absl::string_view payload = delta.payload();
    ASSERT_EQ((*FindCodec(delta.encoding()))->Decode({&payload, 1}, absl::MakeSpan(values)), absl::OkStatus());
    for (size_t i = 0; i < count; ++i) {
      uint64_t id = 0;
      std::memcpy(&id, &delta.ids()[i * 8], 8);
      ASSERT_EQ(RangeOf(RowHash(id, kTable), kRangeBits), delta.range());
      rows[id] = {values.begin() + i * kDim, values.begin() + (i + 1) * kDim};
    }
  }

  std::map<uint32_t, Rows> ranges_;
  absl::flat_hash_map<uint32_t, WatchedPosition> positions_;
  bool inside_ = false;
};

class RowPublishersTest : public testing::Test {
 protected:
  RowPublishersTest() {
    options_.period = absl::InfiniteDuration();
    options_.clock = &clock_;
    for (uint32_t i = 0; i < kRanges; ++i) {
      ranges_.push_back(std::make_unique<TableRange>(&arena_, RowLayout(kDim, 1), kRangeBits, 0));
    }
  }

  TableRange& RangeOfRow(uint64_t hash) { return *ranges_[RangeOf(hash, kRangeBits)]; }

  void Push(uint64_t id, float gradient = 1) {
    const std::vector<uint64_t> hashes{RowHash(id, kTable)};
    const std::vector<float> gradients(kDim, gradient);
    BatchPush push{hashes, gradients.data(), {}, 1, 0.5f, false, {1}, &optimizer_, &initializer_};
    BatchOutcome outcome;
    RowGroup group;
    group.count = 1;
    TableRange& range = RangeOfRow(hashes[0]);
    range.EnterPush(hashes, push.time, outcome);
    range.Prefetch(hashes, group);
    range.Find(hashes, group);
    range.Push(push, group, outcome);
    range.LeavePush(false, push.time, outcome);
  }
  void Erase(uint64_t id) { RangeOfRow(RowHash(id, kTable)).Erase(RowHash(id, kTable)); }

  void Change(int times) {
    for (int i = 0; i < times; ++i) {
      const uint64_t id = random_() % 300;
      random_() % 3 == 0 ? Erase(id) : Push(id);
    }
  }

  Rows Now() const {
    Rows rows;
    for (const auto& range : ranges_) {
      range->ForEachRow([&](const RowView& row) {
        rows[RowIdOf(row.hash, kTable)] = {row.weights.begin(), row.weights.end()};
      });
    }
    return rows;
  }

  RowPublishers::Request Request(const Reader& reader) const {
    RowPublishers::Request request;
    WatchableTable table{kTable, kDim, 0, {}};
    for (const auto& range : ranges_) table.ranges.push_back(range.get());
    request.tables.push_back({std::move(table), reader.positions()});
    return request;
  }

  std::unique_ptr<RowWatch> Watch(RowPublishers& publishers, const Reader& reader) {
    auto watch = publishers.Watch(Request(reader));
    EXPECT_TRUE(watch.ok()) << watch.status();
    return *std::move(watch);
  }

  ManualClock clock_;
  RowPublishers::Options options_;
  const CountingSgd optimizer_{};
  const LowBitsInitializer initializer_{};
  PageArena arena_{uint64_t{64} << 20};
  std::vector<std::unique_ptr<TableRange>> ranges_;
  std::mt19937_64 random_{7};
};

TEST_F(RowPublishersTest, CopiesEqualTheTableWheneverTheyJoined) {
  RowPublishers publishers(options_);
  std::vector<Reader> readers(5);
  std::vector<std::unique_ptr<RowWatch>> watches;
  for (int round = 0; round < 200; ++round) {
    Change(1 + round % 40);
    if (round % 40 == 5) watches.push_back(Watch(publishers, readers[watches.size()]));
    publishers.Publish();
    for (size_t i = 0; i < watches.size(); ++i) {
      ASSERT_NO_FATAL_FAILURE(readers[i].Drain(*watches[i])) << "round " << round;
      ASSERT_EQ(readers[i].rows(), Now()) << "reader " << i << ", round " << round;
    }
  }
  for (const Reader& reader : readers) EXPECT_EQ(reader.wholes, kRanges) << "each range is sent whole once";
  EXPECT_GT(readers[0].evicted, 100u);
}

TEST_F(RowPublishersTest, ChangesBetweenTheCopiesOfTwoRangesAreNotLost) {
  RowPublishers publishers(options_);
  Change(300);
  Reader reader;
  const auto watch = Watch(publishers, reader);
  for (int round = 0; round < 20; ++round) {
    // One range at most, or a delta.
    ASSERT_NO_FATAL_FAILURE(reader.Take(watch->Next(1)));
    Change(20);
    if (round % 3 == 0) publishers.Publish();
  }
  publishers.Publish();
  ASSERT_NO_FATAL_FAILURE(reader.Drain(*watch));
  EXPECT_EQ(reader.rows(), Now());
  EXPECT_EQ(reader.wholes, kRanges);
}

TEST_F(RowPublishersTest, ARowThatChangesOftenIsSentOnce) {
  RowPublishers publishers(options_);
  Reader reader;
  const auto watch = Watch(publishers, reader);
  reader.Drain(*watch);
  for (int i = 0; i < 100; ++i) Push(9);
  publishers.Publish();
  reader.Drain(*watch);
  EXPECT_EQ(reader.deltas, 1);
  EXPECT_EQ(reader.ids, 1u);
  publishers.Publish();
  EXPECT_TRUE(watch->Next(1 << 20).empty()) << "nothing has changed";
}

TEST_F(RowPublishersTest, AWatcherThatReturnsGoesOnWhereItWas) {
  RowPublishers publishers(options_);
  Change(300);
  Reader reader;
  auto watch = Watch(publishers, reader);
  reader.Drain(*watch);
  for (int round = 0; round < 10; ++round) {
    Change(10);
    publishers.Publish();
    // It has read some of the deltas, or none.
    if (round % 2 == 0) reader.Drain(*watch);
    watch.reset();
    Change(10);
    clock_.Advance(absl::Seconds(50));
    publishers.Publish();
    watch = Watch(publishers, reader);
    reader.Drain(*watch);
    ASSERT_EQ(reader.rows(), Now()) << "round " << round;
  }
  EXPECT_EQ(reader.wholes, kRanges);
}

TEST_F(RowPublishersTest, APositionOrChainThatIsNotTheTablesIsSentWhole) {
  RowPublishers publishers(options_);
  Change(300);
  Reader reader;
  const auto watch = Watch(publishers, reader);
  reader.Drain(*watch);
  Change(100);
  publishers.Publish();
  reader.Drain(*watch);
  auto request = Request(reader);
  request.tables[0].after[0].chain ^= 1;
  request.tables[0].after[1].position += 1;
  request.tables[0].after[2].position -= 1;
  const auto other = publishers.Watch(std::move(request));
  ASSERT_TRUE(other.ok());
  Reader second;
  second.Drain(**other);
  EXPECT_EQ(second.wholes, 3) << "only range 3 goes on";
  EXPECT_EQ(second.parts, 3);
}

TEST_F(RowPublishersTest, ATableIsFollowedUntilTheRetentionTimeAfterItsLastWatcher) {
  RowPublishers publishers(options_);
  Reader reader;
  auto watch = Watch(publishers, reader);
  reader.Drain(*watch);
  watch.reset();
  EXPECT_EQ(publishers.watchers(), 0u);
  clock_.Advance(options_.retention - absl::Seconds(1));
  publishers.Publish();
  EXPECT_EQ(publishers.tables(), 1u);
  clock_.Advance(absl::Seconds(1));
  publishers.Publish();
  EXPECT_EQ(publishers.tables(), 0u);
  Change(100);
  watch = Watch(publishers, reader);
  reader.Drain(*watch);
  EXPECT_EQ(reader.wholes, 2 * kRanges);
  EXPECT_EQ(reader.rows(), Now());
}

TEST_F(RowPublishersTest, AWatcherThatFallsBehindGetsTheRangesConcernedWhole) {
  options_.max_retained_bytes = 4096;
  RowPublishers publishers(options_);
  Change(300);
  Reader slow, quick;
  const auto slow_watch = Watch(publishers, slow);
  const auto quick_watch = Watch(publishers, quick);
  slow.Drain(*slow_watch);
  quick.Drain(*quick_watch);
  // All changes are in the range of row 1.
  const uint32_t range = RangeOf(RowHash(1, kTable), kRangeBits);
  for (int round = 0; round < 100; ++round) {
    Push(1);
    publishers.Publish();
    quick.Drain(*quick_watch);
    ASSERT_EQ(quick.rows(), Now());
  }
  EXPECT_EQ(quick.wholes, kRanges);
  EXPECT_EQ(quick_watch->fallen_behind(), 0u);
  slow.Drain(*slow_watch);
  EXPECT_EQ(slow.rows(), Now());
  EXPECT_EQ(slow.wholes, kRanges + 1) << "range " << range;
  EXPECT_EQ(slow_watch->fallen_behind(), 1u);
}

TEST_F(RowPublishersTest, DeltasThatExceedTheLimitAreReplacedByWholeRanges) {
  options_.max_retained_bytes = 1;
  RowPublishers publishers(options_);
  Reader reader;
  const auto watch = Watch(publishers, reader);
  for (int round = 0; round < 20; ++round) {
    Change(20);
    publishers.Publish();
    ASSERT_NO_FATAL_FAILURE(reader.Drain(*watch));
    ASSERT_EQ(reader.rows(), Now());
  }
  EXPECT_EQ(reader.deltas, 0);
}

TEST_F(RowPublishersTest, LargeRangesAndDeltasAreSplitIntoParts) {
  RowPublishers publishers(options_);
  // 16 bytes a row.
  for (uint64_t id = 0; id < 300'000; ++id) Push(id);
  Reader reader;
  const auto watch = Watch(publishers, reader);
  reader.Drain(*watch);
  EXPECT_EQ(reader.wholes, kRanges);
  EXPECT_EQ(reader.parts, 2 * kRanges);
  for (uint64_t id = 0; id < 300'000; ++id) id % 7 == 0 ? Erase(id) : Push(id);
  publishers.Publish();
  reader.Drain(*watch);
  EXPECT_EQ(reader.deltas, kRanges);
  EXPECT_EQ(reader.parts, 4 * kRanges);
  EXPECT_EQ(reader.rows(), Now());
}

TEST_F(RowPublishersTest, EncodingsHaveChainsOfTheirOwn) {
  RowPublishers publishers(options_);
  Change(300);
  Reader fp32;
  const auto watch = Watch(publishers, fp32);
  fp32.Drain(*watch);
  auto request = Request(fp32);
  request.encoding = v1::ENCODING_BF16;
  const auto half = publishers.Watch(std::move(request));
  ASSERT_TRUE(half.ok());
  Reader bf16;
  bf16.Drain(**half);
  EXPECT_EQ(bf16.wholes, kRanges) << "the positions of fp32 are not those of bf16";
  // Halves of small numbers are exact.
  EXPECT_EQ(bf16.rows(), Now());
  EXPECT_EQ(publishers.tables(), 2u);
}

TEST_F(RowPublishersTest, OnceEndsAfterEachRange) {
  RowPublishers publishers(options_);
  Change(300);
  Reader reader;
  auto request = Request(reader);
  request.once = true;
  auto watch = publishers.Watch(std::move(request));
  ASSERT_TRUE(watch.ok());
  EXPECT_FALSE((*watch)->done());
  reader.Drain(**watch);
  EXPECT_TRUE((*watch)->done());
  EXPECT_EQ(reader.wholes, kRanges);
  EXPECT_EQ(reader.rows(), Now());
  watch->reset();
  publishers.Publish();
  EXPECT_EQ(publishers.tables(), 0u) << "nobody returns to it";
}

TEST_F(RowPublishersTest, OnceGoesOnFromPositionsToTheTimeOfTheCall) {
  RowPublishers publishers(options_);
  Change(300);
  Reader reader;
  const auto first = Watch(publishers, reader);
  reader.Drain(*first);
  Change(100);
  auto request = Request(reader);
  request.once = true;
  const auto watch = publishers.Watch(std::move(request));
  ASSERT_TRUE(watch.ok());
  reader.Drain(**watch);
  EXPECT_TRUE((*watch)->done());
  EXPECT_EQ(reader.wholes, kRanges);
  EXPECT_EQ(reader.rows(), Now()) << "changes before the call are there";
}

TEST_F(RowPublishersTest, ThereIsALimitOfWatchers) {
  options_.max_watchers = 2;
  RowPublishers publishers(options_);
  Reader reader;
  auto first = Watch(publishers, reader);
  const auto second = Watch(publishers, reader);
  const auto refused = publishers.Watch(Request(reader));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("want at most 2 per shard"));
  first.reset();
  EXPECT_TRUE(publishers.Watch(Request(reader)).ok());
}

TEST_F(RowPublishersTest, EncodingsThatRowsDoNotHaveAreRefused) {
  RowPublishers publishers(options_);
  auto request = Request(Reader());
  request.encoding = v1::ENCODING_INT8;
  const auto refused = publishers.Watch(std::move(request));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(), "encoding: got int8, want fp32, fp16 or bf16");
  EXPECT_EQ(publishers.watchers(), 0u);
  EXPECT_EQ(publishers.tables(), 0u);
}

TEST_F(RowPublishersTest, WatchersThatDoNotReadKeepNobodyElseWaiting) {
  RowPublishers publishers(options_);
  Change(300);
  std::vector<std::unique_ptr<RowWatch>> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(Watch(publishers, Reader()));
  Reader reader;
  const auto watch = Watch(publishers, reader);
  for (int round = 0; round < 20; ++round) {
    Change(20);
    publishers.Publish();
    reader.Drain(*watch);
    ASSERT_EQ(reader.rows(), Now());
  }
}

TEST_F(RowPublishersTest, WakesWatchersAfterEachRound) {
  RowPublishers publishers(options_);
  int woken = 0;
  auto request = Request(Reader());
  request.wake = [&] { ++woken; };
  auto watch = publishers.Watch(std::move(request));
  ASSERT_TRUE(watch.ok());
  publishers.Publish();
  EXPECT_EQ(woken, 1);
  watch->reset();
  publishers.Publish();
  EXPECT_EQ(woken, 1);
}

TEST_F(RowPublishersTest, PublishesByItself) {
  options_.period = absl::Milliseconds(1);
  options_.clock = Clock::Real();
  RowPublishers publishers(options_);
  absl::Mutex mutex;
  int woken = 0;
  auto request = Request(Reader());
  request.wake = [&] {
    absl::MutexLock lock(&mutex);
    ++woken;
  };
  const auto watch = publishers.Watch(std::move(request));
  ASSERT_TRUE(watch.ok());
  absl::MutexLock lock(&mutex);
  const auto enough = [&] { return woken >= 3; };
  EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30)));
}

}  // namespace
}  // namespace ballast
