// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/tables/row_hash.h"
#include "gtest/gtest.h"
#include "server/tables/range/table_fixture.h"
#include "server/tables/sparse_table.h"

namespace ballast {
namespace {

constexpr int kDim = 2;
constexpr int kRangeBits = 3;
constexpr uint32_t kRanges = 1 << kRangeBits;

// A push of some ids at one clock.
struct Push {
  uint32_t clock = 0;
  std::vector<uint64_t> hashes;
  std::vector<float> gradients;
  std::vector<uint16_t> uses;
};

// Pushes of ids of which few come often, with a clock that advances.
std::vector<Push> MakePushes(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Push> pushes;
  for (int i = 0; i < count; ++i) {
    Push push;
    push.clock = i / 3;
    for (int ids = random() % 40; ids > 0; --ids) {
      push.hashes.push_back(RowHash(random() % (random() % 2 == 0 ? 60 : 1500), 1));
    }
    std::sort(push.hashes.begin(), push.hashes.end());
    push.hashes.erase(std::unique(push.hashes.begin(), push.hashes.end()), push.hashes.end());
    for (size_t row = 0; row < push.hashes.size(); ++row) {
      push.uses.push_back(1 + random() % 3);
      for (int k = 0; k < kDim; ++k) push.gradients.push_back(static_cast<float>(random() % 9) - 4);
    }
    pushes.push_back(std::move(push));
  }
  return pushes;
}

struct Row {
  std::vector<float> weights;
  uint32_t version = 0;

  bool operator==(const Row&) const = default;
};
using Rows = std::map<uint64_t, Row>;

// The rules, as a person would write them down, over maps; sketches excepted.
class Oracle {
 public:
  Oracle(const RowRules& rules, uint32_t max_age) : rules_(rules), max_age_(max_age) {}

  void Apply(const Push& push) {
    now_ = push.clock;
    for (size_t i = 0; i < push.hashes.size(); ++i) {
      const uint64_t hash = push.hashes[i];
      Range& range = ranges_[RangeOf(hash, kRangeBits)];
      DropExpired(range);
      auto found = range.rows.find(hash);
      if (found == range.rows.end()) {
        if (!Admit(range, hash, push.uses[i])) continue;
        State state;
        state.row.weights.assign(kDim, static_cast<float>(hash & 7));
        found = range.rows.emplace(hash, state).first;
        ++created;
      }
      State& state = found->second;
      if (rules_.half_life > 0) {
        state.score = ScoreAfter(state.score, now_ - state.last, rules_.half_life, push.uses[i]);
      }
      for (int k = 0; k < kDim; ++k) state.row.weights[k] -= 0.5f * push.gradients[i * kDim + k];
      ++state.row.version;
      state.last = now_;
    }
    // The ranges that the push reached.
    for (auto& [number, range] : ranges_) {
      const bool reached = std::any_of(push.hashes.begin(), push.hashes.end(), [number = number](uint64_t hash) {
        return RangeOf(hash, kRangeBits) == number;
      });
      if (reached) Evict(range);
    }
  }

  Rows Read() const {
    Rows rows;
    for (const auto& [number, range] : ranges_) {
      for (const auto& [hash, state] : range.rows) {
        if (now_ - state.last <= max_age_) rows[hash] = state.row;
      }
    }
    return rows;
  }

  uint64_t created = 0, over_budget = 0, small_norm = 0;

 private:
  struct State {
    Row row;
    uint32_t last = 0;
    uint16_t score = 0;
  };
  struct Range {
    std::map<uint64_t, State> rows;
    std::map<uint64_t, std::pair<uint32_t, uint32_t>> waiting;
  };

  void DropExpired(Range& range) {
    std::erase_if(range.rows, [&](const auto& row) { return now_ - row.second.last > max_age_; });
    std::erase_if(range.waiting, [&](const auto& id) { return now_ - id.second.second > max_age_; });
  }

  bool Admit(Range& range, uint64_t hash, uint32_t uses) {
    if (rules_.min_uses <= 1) return true;
    auto& [count, last] = range.waiting[hash];
    count += uses;
    last = now_;
    if (count < rules_.min_uses) return false;
    range.waiting.erase(hash);
    return true;
  }

  void Evict(Range& range) {
    DropExpired(range);
    if (rules_.max_rows == 0 || range.rows.size() <= rules_.max_rows) return;
    std::vector<std::tuple<int, double, uint64_t>> order;
    for (const auto& [hash, state] : range.rows) {
      double norm = 0;
      for (float weight : state.row.weights) norm += double{weight} * weight;
      const bool small = rules_.min_norm > 0 && std::sqrt(norm) < rules_.min_norm;
      const double score = rules_.half_life > 0 ? ScoreAt(state.score, now_ - state.last, rules_.half_life)
                                                : static_cast<double>(state.last);
      order.emplace_back(small ? 0 : 1, small ? 0 : score, hash);
    }
    std::sort(order.begin(), order.end());
    const size_t victims = order.size() - std::max<uint64_t>(rules_.max_rows * 9 / 10, 1);
    for (size_t i = 0; i < victims; ++i) {
      ++(std::get<int>(order[i]) == 0 ? small_norm : over_budget);
      range.rows.erase(std::get<uint64_t>(order[i]));
    }
  }

  const RowRules rules_{};
  const uint32_t max_age_;
  uint32_t now_ = 0;
  std::map<uint32_t, Range> ranges_;
};

// A table whose ranges are at some number of shards.
class Cluster {
 public:
  Cluster(int shards, const RowRules& rules, uint32_t max_age) : rules_(rules), max_age_(max_age) { Spread(shards); }

  BatchOutcome Apply(const Push& push) {
    time_ = {push.clock, max_age_};
    BatchOutcome sum;
    for (const auto& shard : shards_) {
      const SparseTableOptions& own = shard->options();
      const auto at = [&](uint32_t range) {
        return std::partition_point(push.hashes.begin(), push.hashes.end(),
                                    [&](uint64_t hash) { return RangeOf(hash, kRangeBits) < range; }) -
               push.hashes.begin();
      };
      const size_t begin = at(own.first_range), end = at(own.first_range + own.range_count);
      BatchPush batch{absl::MakeConstSpan(push.hashes).subspan(begin, end - begin),
                      push.gradients.data() + begin * kDim,
                      {},
                      1,
                      0.5f,
                      false,
                      time_,
                      &optimizer_,
                      &initializer_};
      batch.uses = absl::MakeConstSpan(push.uses).subspan(begin, end - begin);
      batch.draw = push.clock * 77;
      sum.Add(shard->Push(batch));
    }
    return sum;
  }

  // Moves all ranges to another number of shards, by way of captures, as a restart does.
  void Spread(int shards) {
    std::vector<std::unique_ptr<SparseTable>> before = std::exchange(shards_, {});
    for (int i = 0; i < shards; ++i) {
      const uint32_t count = kRanges / shards;
      shards_.push_back(
          std::make_unique<SparseTable>(&arena_, SparseTableOptions{kDim, 1, kRangeBits, i * count, count, rules_}));
    }
    for (const auto& shard : before) {
      const auto capture = shard->BeginCapture();
      while (const std::optional<RowsPiece> piece = capture->Next()) {
        for (size_t i = 0; i < piece->rows.hashes.size(); ++i) {
          ASSERT_EQ(ShardOf(RangeOf(piece->rows.hashes[i], kRangeBits))
                        .Restore({&piece->rows.hashes[i], 1},
                                 reinterpret_cast<const char*>(&piece->rows.words[i * shard->layout().image_words()])),
                    1u);
        }
        for (size_t i = 0; i < piece->uses.size(); ++i) {
          ASSERT_TRUE(ShardOf(piece->range + i).RestoreUses(piece->range + i, piece->uses[i]).ok());
        }
      }
    }
  }

  // Sweeps what has expired, which nobody may notice.
  void Sweep() {
    for (const auto& shard : shards_) {
      for (uint32_t i = 0; i < shard->options().range_count; ++i) shard->Sweep(i, time_);
    }
  }

  Rows Read() const {
    Rows rows;
    std::vector<uint64_t> hashes;
    for (uint64_t id = 0; id < 1500; ++id) hashes.push_back(RowHash(id, 1));
    std::sort(hashes.begin(), hashes.end());
    for (uint64_t hash : hashes) {
      std::vector<float> values(kDim);
      uint32_t version = 0;
      ShardOf(RangeOf(hash, kRangeBits)).Pull({{&hash, 1}, &initializer_, values.data(), &version, time_});
      if (version > 0) rows[hash] = {values, version};
    }
    return rows;
  }

  uint64_t waiting() const {
    uint64_t ids = 0;
    for (const auto& shard : shards_) ids += shard->waiting();
    return ids;
  }

 private:
  SparseTable& ShardOf(uint32_t range) const { return *shards_[range * shards_.size() / kRanges]; }

  const CountingSgd optimizer_{};
  const LowBitsInitializer initializer_{};
  const RowRules rules_{};
  const uint32_t max_age_;
  PageArena arena_{uint64_t{256} << 20};
  RowTime time_;
  std::vector<std::unique_ptr<SparseTable>> shards_;
};

struct Rules {
  std::string name;
  RowRules rules;
  uint32_t max_age = RowTime::kNever;
};

class RowRulesTest : public testing::TestWithParam<Rules> {};

TEST_P(RowRulesTest, LeaveTheRowsThatASimpleOracleLeaves) {
  const Rules& param = GetParam();
  if (param.rules.sketch || param.rules.probability < 1) GTEST_SKIP() << "the oracle has neither";
  Oracle oracle(param.rules, param.max_age);
  Cluster table(1, param.rules, param.max_age);
  uint64_t created = 0, over_budget = 0, small_norm = 0;
  for (const Push& push : MakePushes(600, 1)) {
    oracle.Apply(push);
    const BatchOutcome outcome = table.Apply(push);
    created += outcome.created;
    over_budget += outcome.over_budget;
    small_norm += outcome.small_norm;
    EXPECT_EQ(outcome.applied + outcome.not_admitted, push.hashes.size());
    ASSERT_EQ(table.Read(), oracle.Read()) << "clock " << push.clock;
  }
  EXPECT_EQ(created, oracle.created);
  EXPECT_EQ(over_budget, oracle.over_budget);
  EXPECT_EQ(small_norm, oracle.small_norm);
}

TEST_P(RowRulesTest, GiveTheSameRowsOnAnyNumberOfShardsAfterMovesAndSweeps) {
  const Rules& param = GetParam();
  Cluster one(1, param.rules, param.max_age), four(4, param.rules, param.max_age),
      moving(2, param.rules, param.max_age);
  int pushes = 0;
  for (const Push& push : MakePushes(600, 2)) {
    for (Cluster* cluster : {&one, &four, &moving}) cluster->Apply(push);
    ++pushes;
    if (pushes % 97 == 0) moving.Spread(1 << (pushes / 97 % 4));
    if (pushes % 31 == 0) four.Sweep();
    if (pushes % 10 > 0) continue;
    const Rows rows = one.Read();
    ASSERT_EQ(four.Read(), rows) << "push " << pushes;
    ASSERT_EQ(moving.Read(), rows) << "push " << pushes;
  }
  EXPECT_FALSE(one.Read().empty());
}

INSTANTIATE_TEST_SUITE_P(
    All, RowRulesTest,
    testing::Values(
        Rules{"none", {}}, Rules{"steps", {}, 7}, Rules{"leastRecent", {.max_rows = 20}},
        Rules{"fewestUses", {.max_rows = 20, .half_life = 10}},
        Rules{"smallNorm", {.max_rows = 20, .half_life = 10, .min_norm = 3}},
        Rules{"stepsAndBudget", {.max_rows = 15, .half_life = 4}, 9}, Rules{"oneRow", {.max_rows = 1}},
        Rules{"admission", {.min_uses = 5}}, Rules{"admissionAndSteps", {.min_uses = 5}, 12},
        Rules{"admissionAndBudget", {.min_uses = 4, .max_rows = 40, .half_life = 10}},
        Rules{"sketch", {.min_uses = 4, .sketch = true}},
        Rules{"sketchAndBudget", {.min_uses = 4, .sketch = true, .max_rows = 20}, 9},
        Rules{"probability", {.probability = 0.3}},
        Rules{"everything", {.min_uses = 2, .probability = 0.7, .max_rows = 25, .half_life = 5, .min_norm = 2}, 20}),
    [](const auto& info) { return info.param.name; });

TEST(AdmissionTest, AProbabilityAdmitsThatShareOfThePushes) {
  Cluster table(1, {.probability = 0.25}, RowTime::kNever);
  uint64_t created = 0, draws = 0;
  for (uint32_t clock = 0; clock < 200; ++clock) {
    Push push{clock, {}, {}, {}};
    for (uint64_t id = 0; id < 100; ++id) push.hashes.push_back(RowHash(clock * 100 + id, 1));
    std::sort(push.hashes.begin(), push.hashes.end());
    push.gradients.assign(push.hashes.size() * kDim, 1);
    push.uses.assign(push.hashes.size(), 1);
    const BatchOutcome outcome = table.Apply(push);
    created += outcome.created;
    draws += push.hashes.size();
  }
  // Four standard deviations of 20,000 draws.
  EXPECT_NEAR(static_cast<double>(created) / static_cast<double>(draws), 0.25, 0.0123);
}

TEST(EvictionTest, CountsRowsThatReturn) {
  Cluster table(1, {}, /*max_age=*/5);
  const std::vector<uint64_t> hashes = HashesOfRows(100);
  const auto push = [&](uint32_t clock, size_t rows) {
    return table.Apply({clock,
                        {hashes.begin(), hashes.begin() + rows},
                        std::vector<float>(rows * kDim, 1),
                        std::vector<uint16_t>(rows, 1)});
  };
  EXPECT_EQ(push(0, 100).created, 100u);
  EXPECT_EQ(push(5, 10).returned, 0u);
  // Expired rows that nobody swept begin anew in their places.
  const BatchOutcome in_place = push(7, 20);
  EXPECT_EQ(in_place.expired, 10u);
  EXPECT_EQ(in_place.returned, 10u);
  table.Sweep();
  const BatchOutcome swept = push(7, 100);
  EXPECT_EQ(swept.created, 80u);
  // A lower bound: two rows may share a place in the memory of evicted ones.
  EXPECT_GE(swept.returned, 50u);
  EXPECT_LE(swept.returned, 80u);
}

}  // namespace
}  // namespace ballast
