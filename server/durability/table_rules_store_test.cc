// SPDX-License-Identifier: Apache-2.0
// Tests of admission and eviction across restarts.
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/durability/shard_store_fixture.h"
#include "server/durability/table_store_fixture.h"

namespace ballast {
namespace {

// Rules that follow from all that a shard keeps besides rows: counts of uses, scores, the clock and ticks.
v1::TableSpec WithRules(bool sketch) {
  v1::TableSpec spec = StoredTable();
  spec.set_range_bits(6);
  spec.mutable_admission()->set_min_uses(3);
  spec.mutable_admission()->set_sketch(sketch);
  spec.mutable_admission()->set_probability(0.9f);
  v1::Eviction& eviction = *spec.mutable_eviction();
  eviction.set_ttl_steps(40);
  eviction.set_ttl_seconds(64);
  eviction.set_max_rows(64 * 5);
  eviction.set_half_life_steps(10);
  eviction.set_min_norm(0.5f);
  return spec;
}

class TableRulesStoreTest : public ShardStoreTest, public testing::WithParamInterface<bool> {
 protected:
  Process& StartTable() {
    Process& process = Start();
    EXPECT_THAT(process.shard.Declare(Job(), {}, {PartOf(0, 1, WithRules(GetParam()))}), IsOk());
    return process;
  }

  // Push number `sequence`: some of 2,000 ids, the lower the more often.
  static void Push(ParameterShard& shard, uint64_t sequence) {
    std::mt19937_64 random(sequence);
    std::vector<uint64_t> ids;
    std::vector<uint16_t> uses;
    std::vector<float> gradients;
    for (int i = 0; i < 150; ++i) {
      ids.push_back(random() % (1 + random() % 2000));
      uses.push_back(1 + random() % 2);
      for (int k = 0; k < 3; ++k) gradients.push_back(static_cast<float>(random() % 7) - 3);
    }
    const absl::string_view payload = BytesOf(gradients);
    const auto bytes = [](const auto& elements) {
      return absl::string_view(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(elements[0]));
    };
    const RowGradientsView view{kTable,        bytes(ids), /*unordered=*/true, {}, v1::ENCODING_FP32,
                                {&payload, 1}, bytes(uses)};
    PushTicket ticket{0, 1, sequence, sequence - 1, 1, std::nullopt};
    ticket.unix_seconds = 1000000 + 3 * sequence;
    ASSERT_THAT(shard.PushRows("job", ticket, /*messages_of_step=*/1, {view}), IsOk());
  }

  // The rows that a pull sees, and the numbers of the status.
  static std::pair<std::map<uint64_t, std::pair<uint32_t, std::vector<float>>>, std::string> Seen(
      ParameterShard& shard) {
    std::vector<uint64_t> ids(2000);
    for (uint64_t id = 0; id < ids.size(); ++id) ids[id] = id;
    const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint64_t));
    const MessageRows order = MessageRows::Of(bytes, kTable, /*unordered=*/true).value();
    const PulledRows rows = shard.PullRows("job", kTable, order, v1::RowQuery::MISSING_INITIAL).value();
    std::map<uint64_t, std::pair<uint32_t, std::vector<float>>> seen;
    for (uint64_t id = 0; id < ids.size(); ++id) {
      if (rows.versions[id] == 0) continue;
      const float* const weights = rows.values.values().data() + 3 * id;
      seen[id] = {rows.versions[id], {weights, weights + 3}};
    }
    return {seen, absl::StrCat(shard.status().tables[0].waiting, " wait, ", shard.status().tables[0].not_admitted)};
  }
};

TEST_P(TableRulesStoreTest, GoOnAfterARestartAsIfThereHadBeenNone) {
  for (const bool snapshot : {false, true}) {
    ParameterShard twin({}, Clock::Real());
    ASSERT_THAT(twin.Declare(Job(v1::Durability::NONE), {}, {PartOf(0, 1, WithRules(GetParam()))}), IsOk());
    folder_ = NewFolder();
    Process* process = &StartTable();
    for (uint64_t sequence = 1; sequence <= 150; ++sequence) {
      Push(process->shard, sequence);
      Push(twin, sequence);
      if (snapshot && sequence % 40 == 20) {
        ASSERT_THAT(process->store->TakeSnapshot(), IsOk());
      }
      if (sequence % 50 == 0) process = &Start();
      if (sequence % 25 == 0) {
        ASSERT_EQ(Seen(process->shard), Seen(twin)) << "push " << sequence << (snapshot ? " with snapshots" : "");
      }
    }
    const v1::EvictedRows evicted = process->shard.status().tables[0].evicted;
    EXPECT_GT(evicted.over_budget() + evicted.small_norm(), 100u);
    EXPECT_GT(Seen(twin).first.size(), 100u);
  }
}

INSTANTIATE_TEST_SUITE_P(ExactOrSketch, TableRulesStoreTest, testing::Bool());

}  // namespace
}  // namespace ballast
