// SPDX-License-Identifier: Apache-2.0
// Tests of learning rates that are divided by 1 + the staleness of the table.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tables/table.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;
using Scaling = Table::Policy::Scaling;

constexpr uint32_t kTable = 9;

std::string IdBytes(const std::vector<uint64_t>& ids) {
  return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint64_t));
}

// A table of one weight per row, from 0, which two workers change with learning rate 1.
class TableStalenessTest : public testing::Test {
 protected:
  static Table::Policy ByTable() { return {.scaling = Scaling::kByTable, .workers = 2}; }

  std::unique_ptr<Table> Make(const Table::Policy& policy) {
    OwnedTable owned{SgdTable(kTable, "rows", 1), {}};
    owned.spans.emplace_back().set_count(4096);
    return Table::Make(std::move(owned), policy, &memory_).value();
  }

  // A gradient of 6 for each id, computed from rows that were pulled at that clock.
  static RowGradients Gradients(const std::vector<uint64_t>& ids, std::optional<uint64_t> clock,
                                const std::vector<uint32_t>& versions = {}) {
    const std::vector<float> values(ids.size(), 6);
    const absl::string_view payload(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    const std::string id_bytes = IdBytes(ids);
    RowGradientsView view{kTable, id_bytes, /*unordered=*/true, {}, v1::ENCODING_FP32, {&payload, 1}};
    view.versions = {reinterpret_cast<const char*>(versions.data()), versions.size() * sizeof(uint32_t)};
    view.clock = clock;
    return DecodeRowGradients(view, 1, /*accept_non_finite=*/false).value();
  }

  static Table::Message MessageOf(uint32_t worker, uint64_t step, uint32_t messages_of_step = 1) {
    return {.place = {worker, /*incarnation=*/1, step, messages_of_step}, .examples = 1};
  }

  static BatchOutcome Push(Table& table, const Table::Message& message, const RowGradients& gradients) {
    return table.Apply(gradients, table.TakeTurn(message, gradients, {}, /*ordered=*/false)).rows;
  }

  static PulledRows Pull(const Table& table, const std::vector<uint64_t>& ids) {
    const MessageRows order = MessageRows::Of(IdBytes(ids), kTable, /*unordered=*/true).value();
    return table.Pull(order, v1::RowQuery::MISSING_INITIAL);
  }

  static std::vector<float> Values(const Table& table, const std::vector<uint64_t>& ids) {
    const PulledRows rows = Pull(table, ids);
    return {rows.values.values().begin(), rows.values.values().end()};
  }

  ByteBudget budget_{1 << 26};
  TableMemory memory_{&budget_};
};

TEST_F(TableStalenessTest, AllRowsOfAMessageCountTheStepsSinceTheirPull) {
  const std::unique_ptr<Table> table = Make(ByTable());
  EXPECT_THAT(Pull(*table, {1, 2}).clock, Optional(0u));
  Push(*table, MessageOf(1, 0), Gradients({1}, 0));
  Push(*table, MessageOf(1, 1), Gradients({1}, 1));
  EXPECT_THAT(Pull(*table, {1, 2}).clock, Optional(2u));
  EXPECT_THAT(Values(*table, {1, 2}), ElementsAre(-12, 0));
  const BatchOutcome outcome = Push(*table, MessageOf(0, 0), Gradients({1, 2}, 0));
  EXPECT_EQ(outcome.max_staleness, 2u);
  EXPECT_THAT(Values(*table, {1, 2}), ElementsAre(-14, -2)) << "a third of 6, also in the row that nobody had changed";
}

TEST_F(TableStalenessTest, ByRowOnlyTheRowThatOthersChangedCounts) {
  const std::unique_ptr<Table> table = Make({.scaling = Scaling::kByRow, .workers = 2});
  EXPECT_EQ(Pull(*table, {1}).clock, std::nullopt);
  Push(*table, MessageOf(1, 0), Gradients({1}, 0));
  Push(*table, MessageOf(1, 1), Gradients({1}, 1));
  const BatchOutcome outcome = Push(*table, MessageOf(0, 0), Gradients({1, 2}, 0, {0, 0}));
  EXPECT_EQ(outcome.max_staleness, 2u);
  EXPECT_THAT(Values(*table, {1, 2}), ElementsAre(-14, -6));
}

TEST_F(TableStalenessTest, MessagesOfTheSameStepDoNotCountForEachOther) {
  const std::unique_ptr<Table> table = Make(ByTable());
  EXPECT_EQ(Push(*table, MessageOf(0, 0, 3), Gradients({1}, 0)).max_staleness, 0u);
  EXPECT_EQ(Push(*table, MessageOf(0, 0, 0), Gradients({2}, 0)).max_staleness, 0u);
  EXPECT_THAT(Pull(*table, {1}).clock, Optional(0u));
  EXPECT_EQ(Push(*table, MessageOf(0, 0, 0), Gradients({3}, 0)).max_staleness, 0u);
  EXPECT_THAT(Pull(*table, {1}).clock, Optional(1u));
  EXPECT_THAT(Values(*table, {1, 2, 3}), ElementsAre(-6, -6, -6));
}

TEST_F(TableStalenessTest, TheSendersOwnStepCountsIfItEndedAfterThePull) {
  const std::unique_ptr<Table> table = Make(ByTable());
  // Both batches were pulled before the first was pushed.
  EXPECT_EQ(Push(*table, MessageOf(0, 0), Gradients({1}, 0)).max_staleness, 0u);
  EXPECT_EQ(Push(*table, MessageOf(0, 1), Gradients({2}, 0)).max_staleness, 1u);
  EXPECT_THAT(Values(*table, {1, 2}), ElementsAre(-6, -3));
}

TEST_F(TableStalenessTest, AStepWithoutRowsCounts) {
  const std::unique_ptr<Table> table = Make(ByTable());
  Push(*table, MessageOf(1, 0), {});
  EXPECT_EQ(Push(*table, MessageOf(0, 0), Gradients({1}, 0)).max_staleness, 1u);
}

TEST_F(TableStalenessTest, WithoutAClockOrWithOneThatTheTableHasNotReachedItIsZero) {
  const std::unique_ptr<Table> table = Make(ByTable());
  Push(*table, MessageOf(1, 0), Gradients({1}, 0));
  uint64_t step = 0;
  for (const std::optional<uint64_t> clock : {std::optional<uint64_t>(), std::optional<uint64_t>(9),
                                              std::optional<uint64_t>(std::numeric_limits<uint64_t>::max())}) {
    const BatchOutcome outcome = Push(*table, MessageOf(0, step++), Gradients({2}, clock));
    EXPECT_EQ(outcome.max_staleness, 0u);
    EXPECT_EQ(outcome.orphaned, 0u);
  }
  EXPECT_THAT(Values(*table, {2}), ElementsAre(-18));
}

TEST_F(TableStalenessTest, AVersionThatTheRowHasNotReachedIsStillOrphaned) {
  const std::unique_ptr<Table> table = Make(ByTable());
  Push(*table, MessageOf(1, 0), Gradients({1}, 0));
  const BatchOutcome outcome = Push(*table, MessageOf(0, 0), Gradients({1, 2}, 0, {0, 7}));
  EXPECT_EQ(outcome.orphaned, 1u);
  EXPECT_EQ(outcome.max_staleness, 1u);
  EXPECT_THAT(Values(*table, {1, 2}), ElementsAre(-9, -3)) << "versions do not change the rate";
}

TEST_F(TableStalenessTest, AStepShowsInPullsOnceItAndAllBeforeItAreApplied) {
  for (const bool bounded : {false, true}) {
    Table::Policy policy = ByTable();
    if (bounded) policy.steps_ahead = 4;
    const std::unique_ptr<Table> table = Make(policy);
    const RowGradients slow = Gradients({1}, 0), fast = Gradients({2}, 0), third = Gradients({3}, 0);
    const Table::Turn first = table->TakeTurn(MessageOf(0, 0), slow, {}, false);
    const Table::Turn second = table->TakeTurn(MessageOf(1, 0), fast, {}, false);
    EXPECT_EQ(first.staleness, 0u);
    EXPECT_EQ(second.staleness, 1u) << "the order of turns counts, so a replay has the same";
    table->Apply(fast, second);
    EXPECT_THAT(Pull(*table, {1}).clock, Optional(0u)) << "the values lack the first";
    EXPECT_EQ(table->state().clock, 2u);
    table->Apply(slow, first);
    EXPECT_THAT(Pull(*table, {1}).clock, Optional(2u));
    EXPECT_EQ(Push(*table, MessageOf(0, 1), third).max_staleness, 2u);
    EXPECT_THAT(Values(*table, {1, 2, 3}), ElementsAre(-6, -3, -2));
  }
}

TEST_F(TableStalenessTest, APauseDoesNotCount) {
  for (const bool bounded : {false, true}) {
    Table::Policy policy = ByTable();
    if (bounded) policy.steps_ahead = 4;
    const std::unique_ptr<Table> table = Make(policy);
    Push(*table, MessageOf(1, 0, 0), Gradients({1}, 0));
    table->Apply({}, table->TakePause(1));
    EXPECT_THAT(Pull(*table, {1}).clock, Optional(0u));
    EXPECT_EQ(Push(*table, MessageOf(0, 0), Gradients({2}, 0)).max_staleness, 0u);
  }
}

TEST_F(TableStalenessTest, StepsThatAWorkerReportsAsLostCount) {
  Table::Policy policy = ByTable();
  policy.steps_ahead = 4;
  const std::unique_ptr<Table> table = Make(policy);
  EXPECT_EQ(table->CatchUp(1, 0, 3).lost_steps, 3u);
  EXPECT_THAT(Pull(*table, {1}).clock, Optional(3u));
  EXPECT_EQ(Push(*table, MessageOf(0, 0), Gradients({1}, 1)).max_staleness, 2u);
}

TEST_F(TableStalenessTest, ARestoredTableGoesOnAtItsClock) {
  const std::unique_ptr<Table> table = Make(ByTable());
  for (uint64_t step = 0; step < 5; ++step) Push(*table, MessageOf(1, step), Gradients({1}, step));
  const std::unique_ptr<Table> restored = Make(ByTable());
  ASSERT_TRUE(restored->SetState(table->state()).ok());
  EXPECT_THAT(Pull(*restored, {1}).clock, Optional(5u));
  EXPECT_EQ(Push(*restored, MessageOf(0, 0), Gradients({2}, 3)).max_staleness, 2u);
  EXPECT_THAT(Values(*restored, {2}), ElementsAre(-2));
}

TEST_F(TableStalenessTest, ASynchronousTableIgnoresTheClock) {
  const std::unique_ptr<Table> table = Make({.workers = 2, .quorum = 2});
  EXPECT_EQ(Pull(*table, {1}).clock, std::nullopt);
  for (uint32_t worker : {0u, 1u}) Push(*table, MessageOf(worker, 0), Gradients({1}, 0));
  for (uint32_t worker : {0u, 1u}) Push(*table, MessageOf(worker, 1), Gradients({1}, 0));
  EXPECT_THAT(Values(*table, {1}), ElementsAre(-12));
}

// Values are never older than the clock that comes with them.
TEST_F(TableStalenessTest, AClockIsNeverAheadOfTheValues) {
  const std::unique_ptr<Table> table = Make(ByTable());
  constexpr uint64_t kSteps = 2000;
  std::vector<std::thread> workers;
  for (uint32_t worker : {0u, 1u}) {
    workers.emplace_back([&, worker] {
      const RowGradients gradients = Gradients({worker}, std::nullopt);
      for (uint64_t step = 0; step < kSteps; ++step) Push(*table, MessageOf(worker, step), gradients);
    });
  }
  uint64_t clock = 0;
  while (clock < 2 * kSteps) {
    const PulledRows rows = Pull(*table, {0, 1});
    clock = rows.clock.value();
    ASSERT_GE(rows.versions[0] + rows.versions[1], clock);
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace
}  // namespace ballast
