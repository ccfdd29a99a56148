// SPDX-License-Identifier: Apache-2.0
// Tests of tables whose workers push in steps: policy sync.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/status/error_reason.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

constexpr uint32_t kTable = 9;

std::string IdBytes(const std::vector<uint64_t>& ids) {
  return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint64_t));
}

// A shard with a table of one weight per row, in a synchronous job of two workers.
class TableStepTest : public testing::Test {
 protected:
  void Declare(uint32_t quorum = 0) {
    OwnedTable table{SgdTable(kTable, "rows", 1), {}};
    table.spans.emplace_back().set_count(4096);
    const auto declared = shard_.Declare({"job", SyncPolicy(quorum), 2, {}}, {}, {table});
    ASSERT_TRUE(declared.ok()) << declared.status();
  }

  absl::StatusOr<PushOutcome> Offer(const PushTicket& ticket, const std::vector<uint64_t>& ids, float gradient,
                                    uint32_t messages_of_step = 1) {
    const std::string id_bytes = IdBytes(ids);
    const std::vector<float> gradients(ids.size(), gradient);
    const absl::string_view payload = Bytes(gradients);
    const RowGradientsView view{kTable, id_bytes, /*unordered=*/true, {}, v1::ENCODING_FP32, {&payload, 1}};
    return shard_.PushRows("job", ticket, messages_of_step, {view});
  }

  PushOutcome Push(uint32_t worker, uint64_t step, const std::vector<uint64_t>& ids, float gradient,
                   uint32_t examples = 1, uint32_t messages_of_step = 1, uint64_t incarnation = 1) {
    const auto outcome = Offer({worker, incarnation, ++sequence_, step, examples}, ids, gradient, messages_of_step);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return outcome.value_or(PushOutcome());
  }

  std::vector<float> Pull(const std::vector<uint64_t>& ids) {
    const MessageRows order = MessageRows::Of(IdBytes(ids), kTable, /*unordered=*/true).value();
    const absl::StatusOr<PulledRows> rows = shard_.PullRows("job", kTable, order, v1::RowQuery::MISSING_INITIAL);
    EXPECT_TRUE(rows.ok()) << rows.status();
    const absl::Span<const float> values = rows->values.values();
    return {values.begin(), values.end()};
  }

  // Begins a pull at a step, and returns where its end will be.
  const std::optional<absl::Status>& Await(uint64_t step) {
    auto& end = ends_.emplace_back(std::make_unique<std::optional<absl::Status>>());
    shard_.AwaitRows("job", {step, std::nullopt}, {kTable}, 0, absl::Seconds(10), /*by_reader=*/false,
                     [to = end.get()](absl::Status status) { *to = std::move(status); });
    return *end;
  }

  ManualClock clock_;
  ParameterShard shard_{{.rank = 3, .max_state_bytes = 1 << 20}, &clock_};
  uint64_t sequence_ = 0;
  std::vector<std::unique_ptr<std::optional<absl::Status>>> ends_;
};

TEST_F(TableStepTest, GradientsWaitForAllWorkersAndAreAveragedByExamples) {
  Declare();
  const PushOutcome first = Push(0, 0, {1, 2}, 4, /*examples=*/3);
  EXPECT_EQ(first.buffered, 2u);
  EXPECT_EQ(first.applied, 0u);
  EXPECT_THAT(Pull({1, 2, 3}), ElementsAre(0, 0, 0));
  const PushOutcome second = Push(1, 0, {2, 3}, 8, /*examples=*/1);
  EXPECT_EQ(second.applied, 3u);
  EXPECT_EQ(second.created, 3u);
  // Divided by the examples of both, whoever has sent the row.
  EXPECT_THAT(Pull({1, 2, 3}), ElementsAre(-3, -5, -2));
}

TEST_F(TableStepTest, APullWaitsForTheStepBeforeIt) {
  Declare();
  EXPECT_THAT(Await(0), Optional(absl::OkStatus()));
  const auto& end = Await(1);
  EXPECT_EQ(end, std::nullopt);
  Push(1, 0, {1}, 1);
  EXPECT_EQ(end, std::nullopt);
  Push(0, 0, {}, 0);
  EXPECT_THAT(end, Optional(absl::OkStatus()));
}

TEST_F(TableStepTest, APullThatTimesOutNamesTheWorkersItWaitedFor) {
  Declare();
  const auto& end = Await(1);
  Push(1, 0, {1}, 1);
  clock_.Advance(absl::Seconds(11));
  while (!end.has_value()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(end->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(end->message()),
              HasSubstr("pull of rows of \"rows\" at step 1 waits for the gradient of worker 0"));
}

TEST_F(TableStepTest, AWorkerCountsOnceAllOfItsMessagesHaveCome) {
  Declare();
  Push(0, 0, {1}, 1);
  EXPECT_EQ(Push(1, 0, {1}, 1, 1, /*messages_of_step=*/2).buffered, 1u);
  EXPECT_THAT(Pull({1}), ElementsAre(0));
  EXPECT_EQ(Push(1, 0, {2}, 1, 1, /*messages_of_step=*/0).applied, 2u);
  EXPECT_THAT(Pull({1, 2}), ElementsAre(-1, -0.5));
}

TEST_F(TableStepTest, RefusesAStepThatNobodyCanBeAt) {
  Declare();
  const auto early = Offer({0, 1, ++sequence_, 1, 1}, {1}, 1);
  EXPECT_EQ(early.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(early.status()), v1::ERROR_REASON_STEP_TOO_EARLY);
  EXPECT_THAT(std::string(early.status().message()), HasSubstr("shard 3: \"rows\": worker 0: got rows for step 1"));
}

TEST_F(TableStepTest, APauseCompletesTheStepOfTheOthers) {
  Declare();
  const auto& end = Await(1);
  Push(0, 0, {1}, 1);
  ASSERT_TRUE(shard_.Pause("job", 1, 1).ok());
  EXPECT_THAT(end, Optional(absl::OkStatus()));
  EXPECT_THAT(Pull({1}), ElementsAre(-1));
}

TEST_F(TableStepTest, AnUnfinishedStepOfALostWorkerIsSentAgainWhole) {
  Declare();
  Push(0, 0, {1}, 1);
  Push(1, 0, {1}, 100, 1, /*messages_of_step=*/0);
  // The worker returns with another incarnation.
  Push(1, 0, {1}, 3, 1, /*messages_of_step=*/1, /*incarnation=*/2);
  EXPECT_THAT(Pull({1}), ElementsAre(-2));
}

TEST_F(TableStepTest, WithAQuorumLateGradientsAreDropped) {
  Declare(/*quorum=*/1);
  EXPECT_EQ(Push(0, 0, {1}, 1).applied, 1u);
  EXPECT_EQ(Push(1, 0, {1}, 1).dropped, 1u);
  EXPECT_THAT(Pull({1}), ElementsAre(-1));
  EXPECT_EQ(shard_.status().dropped, 1u);
}

TEST_F(TableStepTest, TheStateBetweenTwoMessagesOfAStepIsRestored) {
  Declare();
  Push(0, 0, {1, 2}, 1);
  Push(1, 0, {1, 2}, 3);
  Push(1, 1, {2, 3}, 5, /*examples=*/2);
  Push(0, 1, {1}, 7, 1, /*messages_of_step=*/2);
  ParameterShard other({.rank = 3, .max_state_bytes = 1 << 20}, &clock_);
  ASSERT_EQ(other.Restore(shard_.Capture([] {})), absl::OkStatus());
  const auto finish = [&](ParameterShard& shard) {
    const std::string ids = IdBytes({3});
    const std::vector<float> gradients = {9};
    const absl::string_view payload = Bytes(gradients);
    const RowGradientsView view{kTable, ids, true, {}, v1::ENCODING_FP32, {&payload, 1}};
    EXPECT_EQ(shard.PushRows("job", {0, 1, sequence_ + 1, 1, 1}, 0, {view})->applied, 3u);
    const MessageRows order = MessageRows::Of(IdBytes({1, 2, 3}), kTable, true).value();
    const absl::StatusOr<PulledRows> rows = shard.PullRows("job", kTable, order, v1::RowQuery::MISSING_INITIAL);
    const absl::Span<const float> values = rows->values.values();
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> want = finish(shard_);
  EXPECT_EQ(finish(other), want);
  EXPECT_EQ(shard_.status().tables[0].clock, 2u);
  EXPECT_EQ(other.status().tables[0].clock, 2u);
}

}  // namespace
}  // namespace ballast
