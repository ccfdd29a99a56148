// SPDX-License-Identifier: Apache-2.0
#include "server/shard/table_builder.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/tables/row_hash.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_fixture.h"
#include "server/shard/shard_tables.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kTable = 9;
constexpr uint32_t kRanges = 64;

// A table of 64 ranges that follows the changes of another one.
class TableBuilderTest : public testing::Test {
 protected:
  explicit TableBuilderTest(const v1::ConsistencyPolicy& policy = AsyncPolicy()) : job_{"job", policy, 2, {}} {
    OwnedTable table{SgdTable(kTable, "rows", 2), {}};
    table.spec.set_range_bits(6);
    table.spec.mutable_optimizer()->mutable_adam()->set_learning_rate(0.1f);
    table.spans.emplace_back().set_count(kRanges);
    EXPECT_TRUE(copy_.Declare({table}).ok());
    auto added = original_.Check(job_, {table});
    EXPECT_TRUE(added.ok()) << added.status();
    original_.Add(*std::move(added), {});
    table_ = original_.Find(kTable).value_or(nullptr);
  }

  // A change that the copy has not received yet.
  struct Change {
    PushTicket ticket;
    std::vector<uint64_t> ids;
    std::vector<float> gradients;
    uint64_t clock = 0;
  };

  template <typename Take>
  static void View(const Change& change, const Take& take) {
    const absl::string_view payload = Bytes(change.gradients);
    const absl::string_view ids(reinterpret_cast<const char*>(change.ids.data()), change.ids.size() * sizeof(uint64_t));
    RowGradientsView view{kTable, ids, /*unordered=*/true, {}, v1::ENCODING_FP32, {&payload, 1}};
    view.clock = change.clock;
    take(view);
  }

  void Push(const std::vector<uint64_t>& ids, float value) {
    ++position_;
    Change& change =
        changes_.emplace_back(Change{{0, 1, position_, 0, 1}, ids, std::vector<float>(ids.size() * 2, value)});
    // Rows that were pulled up to six steps ago.
    change.clock = position_ - 1 - std::min<uint64_t>(position_ - 1, random_() % 7);
    View(change, [&](const RowGradientsView& view) {
      absl::StatusOr<CheckedRows> checked = original_.CheckPush(change.ticket, 1, {&view, 1}, false);
      ASSERT_TRUE(checked.ok()) << checked.status();
      for (CheckedRows::Part& part : checked->parts) {
        part.turn = table_->TakeTurn(TableMessageOf(change.ticket, 1), part.gradients, {}, /*ordered=*/false);
        part.table->Apply(part.gradients, part.turn);
      }
    });
  }

  // The copy receives up to `count` changes.
  void Deliver(size_t count) {
    for (; count > 0 && !changes_.empty(); --count, changes_.pop_front()) {
      const Change& change = changes_.front();
      View(change, [&](const RowGradientsView& view) {
        const absl::Status followed =
            copy_.Push(change.ticket.sequence, change.ticket, /*messages_of_step=*/1, {&view, 1}, false);
        ASSERT_TRUE(followed.ok()) << followed;
      });
    }
  }

  void PushSome() {
    std::vector<uint64_t> ids;
    for (uint64_t id = 0; id < 2000; ++id) {
      if (random_() % 10 == 0) ids.push_back(id);
    }
    Push(ids, 0.25f + random_() % 8);
  }

  // Sends ranges [first, first + count) as they are now. They change before they are read.
  void Send(uint32_t first, uint32_t count) {
    const uint64_t captured_at = position_;
    const auto capture = table_->BeginCapture(first, count);
    PushSome();
    while (const std::optional<RowsPiece> piece = capture->Next()) {
      const absl::Status added = copy_.AddRows(
          kTable, {piece->range, piece->ranges, piece->rows.hashes, Images(piece->rows), {}}, captured_at);
      ASSERT_TRUE(added.ok()) << added;
    }
  }

  void FollowBetweenChanges() {
    PushSome();
    PushSome();
    ASSERT_TRUE(copy_.AddState(kTable, table_->state(), position_).ok());
    for (uint32_t first = 0; first < kRanges; first += 8) {
      PushSome();
      // Some of the changes that the capture contains arrive after it.
      Deliver(random_() % 4);
      Send(first, 8);
    }
    Deliver(changes_.size());
    const auto want = RowsOf(*table_);
    const Table::State state = table_->state();
    auto built = std::move(copy_).Finish();
    ASSERT_TRUE(built.ok()) << built.status();
    ASSERT_EQ(built->size(), 1u);
    EXPECT_EQ(RowsOf(*built->front()), want);
    EXPECT_EQ(built->front()->state().clock, state.clock);
    EXPECT_GT(want.size(), 1500u);
  }

  static absl::string_view Images(const RowImages& rows) {
    return {reinterpret_cast<const char*>(rows.words.data()), rows.words.size() * sizeof(uint32_t)};
  }

  static std::map<uint64_t, std::vector<uint32_t>> RowsOf(const Table& table) {
    std::map<uint64_t, std::vector<uint32_t>> rows;
    const auto capture = table.BeginCapture();
    const size_t words = capture->row_bytes() / sizeof(uint32_t);
    while (const std::optional<RowsPiece> piece = capture->Next()) {
      for (size_t i = 0; i < piece->rows.hashes.size(); ++i) {
        const auto image = piece->rows.words.begin() + i * words;
        rows[piece->rows.hashes[i]] = {image, image + words};
      }
    }
    return rows;
  }

  const JobConfig job_;
  ShardTables original_{0, 1 << 30};
  ShardTables other_{0, 1 << 30};
  TableBuilder copy_{0, [this](absl::Span<const OwnedTable> tables) { return other_.Check(job_, tables); }};
  Table* table_ = nullptr;
  uint64_t position_ = 0;
  std::deque<Change> changes_;
  std::mt19937 random_{1};
};

class ScaledTableBuilderTest : public TableBuilderTest {
 protected:
  ScaledTableBuilderTest() : TableBuilderTest(Scaled()) {}

  static v1::ConsistencyPolicy Scaled() {
    v1::ConsistencyPolicy policy;
    policy.mutable_async()->set_scale_by_staleness(true);
    policy.mutable_async()->set_staleness_of(v1::ConsistencyPolicy::TABLE);
    return policy;
  }
};

TEST_F(TableBuilderTest, FollowsATableWhoseRangesArriveBetweenItsChanges) { FollowBetweenChanges(); }

TEST_F(ScaledTableBuilderTest, FollowsATableWhoseRangesArriveBetweenItsChanges) { FollowBetweenChanges(); }

TEST_F(TableBuilderTest, FollowsTheClocksOfABoundedTable) {
  JobConfig job = job_;
  job.policy.mutable_bounded()->set_steps_ahead(1);
  ShardTables tables(0, 1 << 30), others(0, 1 << 30);
  TableBuilder copy(0, [&](absl::Span<const OwnedTable> declared) { return others.Check(job, declared); });
  const OwnedTable owned = table_->owned();
  ASSERT_TRUE(copy.Declare({owned}).ok());
  auto added = tables.Check(job, {owned});
  ASSERT_TRUE(added.ok()) << added.status();
  tables.Add(*std::move(added), {});
  Table* const table = *tables.Find(kTable);
  const auto apply = [&](Table::Turn turn) { table->Apply({}, turn); };
  // The first message of worker 1 is in the state that the copy gets, the second follows.
  const PushTicket fast{0, 1, 1, 0, 0}, slow{1, 1, 1, 0, 0}, rest{1, 1, 2, 0, 0};
  apply(table->TakeTurn(TableMessageOf(fast, 1), {}, {}, false));
  apply(table->TakeTurn(TableMessageOf(slow, 2), {}, {}, false));
  ASSERT_TRUE(copy.AddState(kTable, table->state(), /*captured_at=*/2).ok());
  ASSERT_TRUE(copy.AddRows(kTable, {0, kRanges, {}, "", {}}, 2).ok());
  apply(table->TakeTurn(TableMessageOf(rest, 0), {}, {}, false));
  apply(table->TakePause(0));
  ASSERT_TRUE(copy.Push(2, slow, 2, {}, false).ok()) << "a change that the state contains";
  ASSERT_TRUE(copy.Push(3, rest, 0, {}, false).ok());
  copy.Pause(4, 0);
  auto built = std::move(copy).Finish();
  ASSERT_TRUE(built.ok()) << built.status();
  for (const Table* one : {static_cast<const Table*>(table), static_cast<const Table*>(built->front().get())}) {
    EXPECT_EQ(one->state().clock, 2u);
    EXPECT_TRUE(one->MayPull(2));
    EXPECT_THAT(one->Missing(3), ElementsAre(1)) << "worker 0 has paused";
  }
}

TEST_F(TableBuilderTest, RefusesRangesOutOfOrder) {
  ASSERT_TRUE(copy_.AddState(kTable, {}, 0).ok());
  EXPECT_THAT(copy_.AddRows(kTable, {1, 1, {}, "", {}}, 0).message(),
              HasSubstr("got 1 ranges from 1, want them from 0 to 63"));
  EXPECT_THAT(copy_.AddRows(kTable, {0, 65, {}, "", {}}, 0).message(), HasSubstr("got 65 ranges from 0"));
  EXPECT_THAT(copy_.AddRows(kTable, {0, 1u << 31, {}, "", {}}, 0).message(), HasSubstr("ranges from 0"));
  EXPECT_THAT(copy_.AddRows(8, {0, 1, {}, "", {}}, 0).message(), HasSubstr("table 8 is not declared"));
  EXPECT_THAT(copy_.AddState(kTable, {}, 0).message(), HasSubstr("got its state twice"));
}

TEST_F(TableBuilderTest, RefusesRowsThatCannotBeTheTables) {
  const std::string images(2 * (2 + 4 + 3) * sizeof(float), '\0');
  EXPECT_THAT(copy_.AddRows(kTable, {0, 1, {1, 2}, images.substr(1), {}}, 0).message(),
              HasSubstr("got 71 bytes of 2 rows"));
  EXPECT_THAT(copy_.AddRows(kTable, {0, 1, {2, 1}, images, {}}, 0).message(), HasSubstr("row 1 has hash"));
  ASSERT_TRUE(copy_.AddRows(kTable, {0, 0, {1, 2}, images, {}}, 0).ok());
  EXPECT_THAT(copy_.AddRows(kTable, {0, 1, {2, 3}, images, {}}, 0).message(), HasSubstr("has 1 rows twice"));
}

TEST_F(TableBuilderTest, IsNotFinishedWithoutEveryRangeAndState) {
  EXPECT_THAT(TableBuilder(std::move(copy_)).Finish().status().message(),
              HasSubstr("got no state and 0 of its 64 ranges"));
}

}  // namespace
}  // namespace ballast
