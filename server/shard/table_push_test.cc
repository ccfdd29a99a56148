// SPDX-License-Identifier: Apache-2.0
// Tests of tables: pushes and pulls of rows.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/tables/row_hash.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kTable = 9;
constexpr uint64_t kLimit = 2 << 20;

std::string IdBytes(const std::vector<uint64_t>& ids) {
  return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint64_t));
}

struct Rows {
  std::vector<uint64_t> ids;
  std::vector<float> gradients;
  std::vector<uint32_t> versions = {};
  std::optional<uint64_t> clock = std::nullopt;
};

// A shard with the lower half of a table of two weights per row, in a job of two workers.
class TablePushTest : public testing::Test {
 protected:
  static OwnedTable LowerHalf() {
    OwnedTable table{SgdTable(kTable, "rows", 2), {}};
    table.spec.mutable_initializer()->mutable_constant()->set_value(5);
    v1::RangeSpan& span = table.spans.emplace_back();
    span.set_count(2048);
    return table;
  }

  void Declare(const v1::ConsistencyPolicy& policy = AsyncPolicy(), const OwnedTable& table = LowerHalf()) {
    const auto declared = shard_.Declare({"job", policy, 2, {}}, {}, {table});
    ASSERT_TRUE(declared.ok()) << declared.status();
  }

  absl::StatusOr<PushOutcome> PushAs(const PushTicket& ticket, const Rows& rows, uint32_t messages_of_step = 0) {
    const std::string ids = IdBytes(rows.ids);
    const absl::string_view payload = Bytes(rows.gradients);
    const absl::string_view versions(reinterpret_cast<const char*>(rows.versions.data()),
                                     rows.versions.size() * sizeof(uint32_t));
    RowGradientsView view{kTable, ids, /*unordered=*/true, versions, v1::ENCODING_FP32, {&payload, 1}};
    view.clock = rows.clock;
    return shard_.PushRows("job", ticket, messages_of_step, {view});
  }

  PushOutcome Push(const Rows& rows, uint32_t messages_of_step = 0) {
    const auto outcome = PushAs({0, 1, ++sequence_, 0, 1}, rows, messages_of_step);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return outcome.value_or(PushOutcome());
  }

  std::string Refusal(const Rows& rows) {
    return std::string(PushAs({0, 1, ++sequence_, 0, 1}, rows).status().message());
  }

  PulledRows Pull(const std::vector<uint64_t>& ids, v1::RowQuery::Missing missing = v1::RowQuery::MISSING_UNSPECIFIED) {
    const MessageRows order = MessageRows::Of(IdBytes(ids), kTable, /*unordered=*/true).value();
    absl::StatusOr<PulledRows> rows = shard_.PullRows("job", kTable, order, missing);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() ? *std::move(rows) : PulledRows();
  }

  // Ids whose rows are in the lower half, or in the upper one.
  static std::vector<uint64_t> Ids(int count, bool lower = true) {
    std::vector<uint64_t> ids;
    for (uint64_t id = 0; ids.size() < static_cast<size_t>(count); ++id) {
      if ((RangeOf(RowHash(id, kTable), 12) < 2048) == lower) ids.push_back(id);
    }
    return ids;
  }

  ManualClock clock_;
  ParameterShard shard_{{.rank = 3, .max_state_bytes = kLimit}, &clock_};
  uint64_t sequence_ = 0;
};

TEST_F(TablePushTest, ARowBeginsWithItsInitialValuesAndTheFirstGradient) {
  Declare();
  const std::vector<uint64_t> ids = Ids(2);
  EXPECT_THAT(Pull(ids).values.values(), ElementsAre(5, 5, 5, 5));
  EXPECT_EQ(shard_.status().tables[0].rows, 0) << "a pull creates nothing";
  const PushOutcome outcome = Push({{ids[0]}, {1, 2}});
  EXPECT_EQ(outcome.applied, 1);
  EXPECT_EQ(outcome.created, 1);
  const PulledRows rows = Pull(ids);
  EXPECT_THAT(rows.values.values(), ElementsAre(4, 3, 5, 5));
  EXPECT_THAT(rows.versions, ElementsAre(1, 0));
  EXPECT_EQ(rows.present, "\x01");
  EXPECT_THAT(Pull({ids[1]}, v1::RowQuery::MISSING_ZERO).values.values(), ElementsAre(0, 0));
}

TEST_F(TablePushTest, ARetryIsAppliedOnce) {
  Declare();
  const std::vector<uint64_t> ids = Ids(1);
  const PushTicket ticket{0, 1, 1, 0, 1};
  ASSERT_TRUE(PushAs(ticket, {ids, {1, 1}}, /*messages_of_step=*/1).ok());
  const auto again = PushAs(ticket, {ids, {1, 1}}, /*messages_of_step=*/1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->duplicate);
  EXPECT_EQ(again->created, 1);
  EXPECT_THAT(Pull(ids).values.values(), ElementsAre(4, 4));
  EXPECT_EQ(shard_.status().tables[0].clock, 1);
}

TEST_F(TablePushTest, ValuesFollowTheMessagesOrder) {
  Declare();
  const std::vector<uint64_t> ids = Ids(3);
  Push({{ids[2], ids[0], ids[2]}, {1, 0, 2, 0, 3, 0}});
  EXPECT_THAT(Pull({ids[0], ids[1], ids[2], ids[0]}).values.values(), ElementsAre(3, 5, 5, 5, 1, 5, 3, 5));
}

TEST_F(TablePushTest, StalenessIsOfTheRow) {
  v1::ConsistencyPolicy policy;
  policy.mutable_async()->set_scale_by_staleness(true);
  Declare(policy);
  const std::vector<uint64_t> ids = Ids(2);
  Push({ids, {1, 1, 1, 1}, {0, 0}});
  // The first row is now at version 1, as is the second.
  const PushOutcome outcome = Push({ids, {1, 1, 1, 1}, {0, 1}});
  EXPECT_EQ(outcome.max_staleness, 1);
  EXPECT_THAT(Pull(ids).values.values(), ElementsAre(3.5, 3.5, 3, 3));
}

v1::ConsistencyPolicy ScaledByTable() {
  v1::ConsistencyPolicy policy;
  policy.mutable_async()->set_scale_by_staleness(true);
  policy.mutable_async()->set_staleness_of(v1::ConsistencyPolicy::TABLE);
  return policy;
}

TEST_F(TablePushTest, StalenessIsOfTheTable) {
  Declare(ScaledByTable());
  const std::vector<uint64_t> ids = Ids(2);
  EXPECT_EQ(Pull(ids).clock, 0u);
  Push({{ids[0]}, {1, 1}, {}, 0}, /*messages_of_step=*/1);
  EXPECT_EQ(Pull(ids).clock, 1u);
  const PushOutcome outcome = Push({ids, {1, 1, 1, 1}, {}, 0});
  EXPECT_EQ(outcome.max_staleness, 1);
  EXPECT_EQ(outcome.learning_rate, 1) << "before it is divided";
  EXPECT_THAT(Pull(ids).values.values(), ElementsAre(3.5, 3.5, 4.5, 4.5));
}

TEST_F(TablePushTest, ARetryOfAScaledPushIsAppliedOnce) {
  Declare(ScaledByTable());
  const std::vector<uint64_t> ids = Ids(1);
  Push({ids, {1, 1}, {}, 0}, /*messages_of_step=*/1);
  const PushTicket ticket{1, 1, 1, 0, 1};
  ASSERT_TRUE(PushAs(ticket, {ids, {1, 1}, {}, 0}, /*messages_of_step=*/1).ok());
  Push({{}, {}}, /*messages_of_step=*/1);
  const auto again = PushAs(ticket, {ids, {1, 1}, {}, 0}, /*messages_of_step=*/1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->duplicate);
  EXPECT_EQ(again->max_staleness, 1) << "as when it was applied";
  EXPECT_THAT(Pull(ids).values.values(), ElementsAre(3.5, 3.5));
}

TEST_F(TablePushTest, RefusesStalenessOfTheTableThatScalesNothing) {
  v1::ConsistencyPolicy policy = ScaledByTable();
  policy.mutable_async()->set_scale_by_staleness(false);
  EXPECT_THAT(std::string(shard_.Declare({"job", policy, 2, {}}, {}, {LowerHalf()}).status().message()),
              HasSubstr("policy.async.staleness_of: got TABLE without scale_by_staleness, want"));
  OwnedTable table = LowerHalf();
  *table.spec.mutable_policy() = policy;
  EXPECT_THAT(std::string(shard_.Declare({"job", AsyncPolicy(), 2, {}}, {}, {table}).status().message()),
              HasSubstr("table \"rows\": policy.async.staleness_of: got TABLE without scale_by_staleness, want"));
}

TEST_F(TablePushTest, AVersionThatTheRowNeverReachedIsOrphaned) {
  Declare();
  const std::vector<uint64_t> ids = Ids(2);
  EXPECT_EQ(Push({ids, {1, 1, 1, 1}, {0, 7}}).orphaned, 1);
  EXPECT_THAT(Pull(ids).values.values(), ElementsAre(4, 4, 4, 4));
}

TEST_F(TablePushTest, TheClockCountsStepsThatHaveEnded) {
  OwnedTable table = LowerHalf();
  table.spec.mutable_optimizer()->mutable_schedule()->mutable_step()->set_every(2);
  table.spec.mutable_optimizer()->mutable_schedule()->mutable_step()->set_factor(0.5);
  Declare(AsyncPolicy(), table);
  const std::vector<uint64_t> ids = Ids(1);
  EXPECT_EQ(Push({ids, {0, 0}}, /*messages_of_step=*/1).learning_rate, 1);
  EXPECT_EQ(Push({ids, {0, 0}}).learning_rate, 1);
  ASSERT_TRUE(shard_.PushRows("job", {0, 1, ++sequence_, 1, 1}, /*messages_of_step=*/1, {}).ok());
  EXPECT_EQ(Push({ids, {0, 0}}).learning_rate, 0.5);
}

TEST_F(TablePushTest, AStepEndsWhenAllOfItsMessagesHaveCome) {
  Declare();
  const std::vector<uint64_t> ids = Ids(1);
  Push({ids, {0, 0}}, /*messages_of_step=*/3);
  Push({ids, {0, 0}});
  EXPECT_EQ(shard_.status().tables[0].clock, 0);
  Push({ids, {0, 0}});
  EXPECT_EQ(shard_.status().tables[0].clock, 1);
}

TEST_F(TablePushTest, AWorkerThatPausedSendsItsStepWhole) {
  Declare();
  const std::vector<uint64_t> ids = Ids(1);
  Push({ids, {0, 0}});
  ASSERT_TRUE(shard_.Pause("job", 0, 1).ok());
  Push({ids, {0, 0}}, /*messages_of_step=*/2);
  EXPECT_EQ(shard_.status().tables[0].clock, 0);
  Push({ids, {0, 0}});
  EXPECT_EQ(shard_.status().tables[0].clock, 1);
}

TEST_F(TablePushTest, ATableMayBeAsyncInASynchronousJob) {
  v1::ConsistencyPolicy sync;
  sync.mutable_sync();
  OwnedTable table = LowerHalf();
  table.spec.mutable_policy()->mutable_async()->set_scale_by_staleness(true);
  Declare(sync, table);
  const std::vector<uint64_t> ids = Ids(1);
  EXPECT_EQ(Push({ids, {1, 1}, {0}}).applied, 1);
  // One update behind, so at half the rate.
  EXPECT_EQ(Push({ids, {1, 1}, {0}}).applied, 1);
  EXPECT_THAT(Pull(ids).values.values(), ElementsAre(3.5, 3.5));
}

TEST_F(TablePushTest, RefusesPoliciesThatTablesDoNotHave) {
  const auto refusal = [&](const v1::ConsistencyPolicy& job, const OwnedTable& table) {
    return std::string(shard_.Declare({"job", job, 2, {}}, {}, {table}).status().message());
  };
  v1::ConsistencyPolicy local_job;
  local_job.mutable_local_sgd()->set_local_steps(2);
  local_job.mutable_local_sgd()->set_learning_rate(1);
  EXPECT_THAT(refusal(local_job, LowerHalf()), HasSubstr("} of the job, want sync, bounded, or async without delay"));
  OwnedTable local = LowerHalf();
  local.spec.mutable_policy()->mutable_local_sgd()->set_local_steps(4);
  local.spec.mutable_policy()->mutable_local_sgd()->set_learning_rate(1);
  EXPECT_THAT(refusal(AsyncPolicy(), local), HasSubstr("table \"rows\": got policy local_sgd"));
  OwnedTable compensated = LowerHalf();
  compensated.spec.mutable_policy()->mutable_async()->set_delay_compensation(0.5);
  EXPECT_THAT(refusal(AsyncPolicy(), compensated), HasSubstr("or async without delay compensation"));
}

TEST_F(TablePushTest, RefusesRowsOfAnotherShard) {
  Declare();
  const std::vector<uint64_t> ids = Ids(1, /*lower=*/false);
  EXPECT_THAT(Refusal({ids, {1, 1}}), HasSubstr("shard 3: rows of \"rows\" by worker 0 at step 0: does not own range"));
}

TEST_F(TablePushTest, WithoutMemoryRowsThatExistGoOn) {
  Declare();
  // 30,000 rows take more than 1 MiB.
  std::vector<uint64_t> ids = Ids(30000);
  const Rows all{ids, std::vector<float>(60000, 1)};
  const std::vector<uint64_t> few(ids.begin(), ids.begin() + 10);
  EXPECT_EQ(Push({few, std::vector<float>(20, 1)}).created, 10);
  const auto refused = PushAs({0, 1, ++sequence_, 0, 1}, all);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused.status()), v1::ERROR_REASON_TABLE_MEMORY);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("29990 of 30000 rows would begin"));
  EXPECT_EQ(shard_.status().tables[0].rows, 10) << "nothing of it is applied";
  EXPECT_EQ(Push({few, std::vector<float>(20, 1)}).applied, 10);
}

TEST_F(TablePushTest, ATableWhoseRangesDoNotFitIsRefused) {
  OwnedTable table = LowerHalf();
  table.spec.set_range_bits(16);
  const absl::Status status = shard_.Declare({"job", AsyncPolicy(), 2, {}}, {}, {table}).status();
  EXPECT_TRUE(status.ok()) << status;
  OwnedTable large = table;
  large.spec.set_id(kTable + 1);
  large.spec.set_name("large");
  large.spans[0].set_count(1 << 16);
  const absl::Status refused = shard_.Declare({"job", AsyncPolicy(), 2, {}}, {}, {large}).status();
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_MEMORY_LIMIT) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("table \"large\": its 65536 ranges take"));
  large.spans[0].set_count(16);
  EXPECT_TRUE(shard_.Declare({"job", AsyncPolicy(), 2, {}}, {}, {large}).ok()) << "the refusal holds no memory";
}

TEST_F(TablePushTest, ADifferentDeclarationIsRefused) {
  Declare();
  OwnedTable other = LowerHalf();
  other.spec.set_dim(3);
  EXPECT_THAT(std::string(shard_.Declare({"job", AsyncPolicy(), 2, {}}, {}, {other}).status().message()),
              HasSubstr("dim: 2 -> 3"));
  OwnedTable wider = LowerHalf();
  wider.spans[0].set_count(4096);
  EXPECT_THAT(std::string(shard_.Declare({"job", AsyncPolicy(), 2, {}}, {}, {wider}).status().message()),
              HasSubstr("table \"rows\" was declared before with other ranges"));
  EXPECT_TRUE(shard_.Declare({"job", AsyncPolicy(), 2, {}}, {}, {LowerHalf()}).ok());
}

TEST_F(TablePushTest, AnIdGetsARowOnceItHasEnoughUses) {
  OwnedTable table = LowerHalf();
  table.spec.mutable_admission()->set_min_uses(3);
  Declare(AsyncPolicy(), table);
  const std::vector<uint64_t> ids = Ids(2);
  // Twice in one message counts twice.
  const PushOutcome first = Push({{ids[0], ids[0], ids[1]}, {1, 1, 1, 1, 1, 1}});
  EXPECT_EQ(first.applied, 0);
  EXPECT_EQ(first.not_admitted, 2);
  EXPECT_THAT(Pull(ids).values.values(), ElementsAre(0, 0, 0, 0)) << "a missing row reads as zeros";
  EXPECT_THAT(Pull(ids, v1::RowQuery::MISSING_INITIAL).values.values(), ElementsAre(5, 5, 5, 5));
  EXPECT_EQ(shard_.status().tables[0].waiting, 2);
  const PushOutcome second = Push({ids, {1, 2, 1, 2}});
  EXPECT_EQ(second.created, 1);
  EXPECT_EQ(second.not_admitted, 1);
  EXPECT_THAT(Pull(ids).values.values(), ElementsAre(4, 3, 0, 0));
  const ShardStatus::Table status = shard_.status().tables[0];
  EXPECT_EQ(status.rows, 1);
  EXPECT_EQ(status.waiting, 1);
  EXPECT_EQ(status.not_admitted, 3);
}

TEST_F(TablePushTest, ARowThatNobodyUpdatedForLongIsMissing) {
  OwnedTable table = LowerHalf();
  table.spec.mutable_eviction()->set_ttl_steps(2);
  Declare(AsyncPolicy(), table);
  const std::vector<uint64_t> ids = Ids(2);
  Push({ids, {1, 1, 1, 1}}, /*messages_of_step=*/1);
  for (int step = 0; step < 2; ++step) {
    EXPECT_THAT(Pull(ids).versions, ElementsAre(1 + step, 1));
    Push({{ids[0]}, {1, 1}}, /*messages_of_step=*/1);
  }
  const PulledRows rows = Pull(ids);
  EXPECT_THAT(rows.versions, ElementsAre(3, 0));
  EXPECT_THAT(rows.values.values(), ElementsAre(2, 2, 5, 5));
  const PushOutcome anew = Push({{ids[1]}, {1, 1}}, /*messages_of_step=*/1);
  EXPECT_EQ(anew.created, 1);
  EXPECT_EQ(anew.evicted, 1);
  const v1::EvictedRows evicted = shard_.status().tables[0].evicted;
  EXPECT_EQ(evicted.expired(), 1);
  EXPECT_EQ(evicted.returned(), 1);
}

TEST_F(TablePushTest, ARowThatNobodyUpdatedForLongByTheClockIsMissing) {
  OwnedTable table = LowerHalf();
  table.spec.mutable_eviction()->set_ttl_seconds(64);
  Declare(AsyncPolicy(), table);
  const std::vector<uint64_t> ids = Ids(2);
  Push({ids, {1, 1, 1, 1}}, /*messages_of_step=*/1);
  // Ticks are two seconds apart, and time passes at pushes.
  for (int second = 0; second < 64; second += 8) {
    clock_.Advance(absl::Seconds(8));
    EXPECT_EQ(Pull(ids).versions[1], 1) << second;
    Push({{ids[0]}, {1, 1}}, /*messages_of_step=*/1);
  }
  clock_.Advance(absl::Seconds(8));
  Push({{ids[0]}, {1, 1}}, /*messages_of_step=*/1);
  EXPECT_EQ(Pull(ids).versions[1], 0);
  EXPECT_EQ(Pull(ids).versions[0], 10);
}

TEST_F(TablePushTest, ATableStaysWithinItsRows) {
  OwnedTable table = LowerHalf();
  table.spec.set_range_bits(6);
  table.spans[0].set_count(32);
  table.spec.mutable_eviction()->set_max_rows(64 * 4);
  Declare(AsyncPolicy(), table);
  const std::vector<uint64_t> ids = Ids(2000);
  uint64_t created = 0, evicted = 0;
  for (size_t first = 0; first < ids.size(); first += 50) {
    const std::vector<uint64_t> some(ids.begin() + first, ids.begin() + first + 50);
    const PushOutcome outcome = Push({some, std::vector<float>(100, 1)}, /*messages_of_step=*/1);
    created += outcome.created;
    evicted += outcome.evicted;
    EXPECT_LE(shard_.status().tables[0].rows, 32u * 4);
  }
  EXPECT_EQ(created, 2000u);
  EXPECT_EQ(shard_.status().tables[0].rows, created - evicted);
  EXPECT_EQ(shard_.status().tables[0].evicted.over_budget(), evicted);
  // The newest rows stay.
  EXPECT_EQ(Pull({ids.back()}).versions[0], 1);
}

}  // namespace
}  // namespace ballast
