// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <memory>
#include <numeric>

#include "client/client.h"
#include "client/testing/fake_coordinator_service.h"
#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "common/tables/table_spec_fixture.h"
#include "common/tensors/tensor_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<uint64_t> Numbers(size_t count) {
  std::vector<uint64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// Three shards, and a client that knows their addresses. Table 1, "ids", has rows of 2 weights.
class ClientRowsTest : public testing::Test {
 protected:
  ClientRowsTest() {
    options_.shards = {server0_.address(), server1_.address(), server2_.address()};
    options_.job = "test";
    options_.policy.mutable_async();
    options_.retry_timeout = options_.rpc_timeout = absl::Seconds(60);
  }

  std::unique_ptr<Client> Connected() {
    auto client = Client::Connect(options_);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  // Connects and declares the table at the first call.
  Client& client() {
    if (client_ == nullptr) {
      client_ = Connected();
      EXPECT_EQ(client_->DeclareTables({SgdTable(1, "ids", 2)}), absl::OkStatus());
    }
    return *client_;
  }

  static RowsResult Done(const Future<RowsResult>& future) {
    EXPECT_TRUE(future.Get().ok()) << future.Get().status();
    return future.Get().value_or(RowsResult());
  }

  RowsResult Push(const std::vector<uint64_t>& ids, const std::vector<float>& gradients,
                  const std::vector<uint32_t>& versions = {}) {
    return Done(client().PushRows(0, 1, {{1, ids, gradients, versions}}));
  }

  std::vector<float> Pull(const std::vector<uint64_t>& ids) {
    std::vector<float> values(ids.size() * 2, 9);
    Done(client().PullRows({{1, ids, absl::MakeSpan(values)}}));
    return values;
  }

  // The error of a call that must send nothing.
  std::string Refused(const Future<RowsResult>& future) {
    EXPECT_EQ(future.Get().status().code(), absl::StatusCode::kInvalidArgument);
    for (const FakeParameterService* shard : shards_) {
      EXPECT_THAT(shard->row_requests(), IsEmpty());
      EXPECT_THAT(shard->row_pulls(), IsEmpty());
    }
    return std::string(future.Get().status().message());
  }

  // Sum over the shards of the ids that pushes, or pulls, have named.
  size_t PushedRows() const {
    size_t rows = 0;
    for (const FakeParameterService* shard : shards_) {
      for (const FakeRows::Batch& batch : shard->row_pushes()) rows += batch.ids.size();
    }
    return rows;
  }
  size_t PulledRows() const {
    size_t rows = 0;
    for (const FakeParameterService* shard : shards_) {
      for (const FakeRows::Batch& batch : shard->row_pulls()) rows += batch.ids.size();
    }
    return rows;
  }

  FakeParameterService shard0_, shard1_, shard2_;
  const std::vector<FakeParameterService*> shards_ = {&shard0_, &shard1_, &shard2_};
  FakeServer server0_{&shard0_}, server1_{&shard1_}, server2_{&shard2_};
  ClientOptions options_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientRowsTest, DeclaresToEachShardItsOwnRanges) {
  client();
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(shards_[i]->declarations().size(), 1);
    const v1::DeclareTensorsRequest declaration = shards_[i]->declarations()[0];
    ASSERT_EQ(declaration.tables_size(), 1);
    EXPECT_EQ(declaration.tables(0).spec().name(), "ids");
    ASSERT_EQ(declaration.tables(0).spans_size(), 1);
    EXPECT_EQ(declaration.tables(0).spans(0).first(), 4096 * i / 3);
    EXPECT_EQ(declaration.tables(0).spans(0).shard(), i);
  }
}

TEST_F(ClientRowsTest, DeclaresATableOnce) {
  client();
  EXPECT_EQ(client().DeclareTables({SgdTable(1, "ids", 2)}), absl::OkStatus());
  EXPECT_EQ(client().DeclareTables({SgdTable(1, "ids", 3)}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client().Declare({SgdSpec(1, "w", 4)}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client().DeclareTables({SgdTable(2, "more", 0)}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientRowsTest, PullGivesWhatPushesChangedInTheCallersOrder) {
  const std::vector<uint64_t> ids = Numbers(100);
  std::vector<float> gradients(200);
  std::iota(gradients.begin(), gradients.end(), 0);
  const RowsResult pushed = Push(ids, gradients);
  EXPECT_EQ(pushed.applied, 100);
  EXPECT_EQ(pushed.created, 100);
  EXPECT_FALSE(pushed.duplicate);
  EXPECT_GT(pushed.bytes_sent, 100 * 16);
  EXPECT_THAT(Pull({42, 7, 99}), ElementsAre(-84, -85, -14, -15, -198, -199));
  for (const FakeParameterService* shard : shards_) EXPECT_FALSE(shard->row_pushes().empty());
}

TEST_F(ClientRowsTest, AddsTheGradientsOfARepeatedId) {
  EXPECT_EQ(Push({5, 7, 5}, {1, 2, 10, 20, 3, 4}).applied, 2);
  EXPECT_EQ(PushedRows(), 2);
  EXPECT_THAT(Pull({5, 7}), ElementsAre(-4, -6, -10, -20));
}

TEST_F(ClientRowsTest, AddsInTheOrderOfAppearance) {
  Push({5, 5, 5}, {1e8f, 1, -1e8f, -1e8f, 1, 1e8f});
  EXPECT_THAT(Pull({5}), ElementsAre(-1, 0)) << "1e8 + 1 is 1e8 in fp32";
}

TEST_F(ClientRowsTest, PullsARepeatedIdOnce) {
  Push({5, 7}, {1, 2, 3, 4});
  EXPECT_THAT(Pull({5, 7, 5, 5}), ElementsAre(-1, -2, -3, -4, -1, -2, -1, -2));
  EXPECT_EQ(PulledRows(), 2);
}

TEST_F(ClientRowsTest, TakesOneIdAHundredThousandTimes) {
  const std::vector<uint64_t> ids(100'000, 3);
  EXPECT_EQ(Push(ids, std::vector<float>(200'000, 1)).applied, 1);
  EXPECT_THAT(Pull(ids), Each(-100'000));
}

TEST_F(ClientRowsTest, TakesTheSmallestAndTheLargestId) {
  constexpr uint64_t kLargest = std::numeric_limits<uint64_t>::max();
  Push({kLargest, 0}, {1, 2, 3, 4});
  EXPECT_THAT(Pull({0, kLargest}), ElementsAre(-3, -4, -1, -2));
}

TEST_F(ClientRowsTest, TakesNoIds) {
  EXPECT_EQ(Push({}, {}).applied, 0);
  EXPECT_THAT(Pull({}), IsEmpty());
  EXPECT_EQ(Done(client().PushRows(0, 1, {})).applied, 0);
  EXPECT_EQ(Done(client().PullRows({})).bytes_received, 0);
  for (const FakeParameterService* shard : shards_) EXPECT_THAT(shard->row_requests(), IsEmpty());
}

TEST_F(ClientRowsTest, ReportsWhichRowsExistAndTheirVersions) {
  Push({5}, {1, 2});
  Push({5}, {1, 2});
  const std::vector<uint64_t> ids = {6, 5};
  std::vector<float> values(4);
  std::vector<uint32_t> versions(2, 9);
  std::vector<uint8_t> present(2, 9);
  RowPull pull{1, ids, absl::MakeSpan(values)};
  pull.versions = absl::MakeSpan(versions);
  pull.present = absl::MakeSpan(present);
  Done(client().PullRows({pull}));
  EXPECT_THAT(values, ElementsAre(0.5, 0.5, -2, -4)) << "the fake's initial value is 0.5";
  EXPECT_THAT(versions, ElementsAre(0, 2));
  EXPECT_THAT(present, ElementsAre(0, 1));
  pull.missing = v1::RowQuery::MISSING_ZERO;
  Done(client().PullRows({pull}));
  EXPECT_THAT(values, ElementsAre(0, 0, -2, -4));
}

TEST_F(ClientRowsTest, CountsStalenessFromTheOldestVersionOfARepeatedId) {
  for (int i = 0; i < 3; ++i) Push({5}, {1, 2});
  const RowsResult stale = Push({5, 6, 5}, {1, 2, 3, 4, 5, 6}, {2, 0, 1});
  EXPECT_EQ(stale.max_staleness, 2);
  EXPECT_EQ(stale.orphaned, 0);
  EXPECT_EQ(Push({6}, {1, 2}, {40}).orphaned, 1);
}

TEST_F(ClientRowsTest, APushCarriesEachShardsClockOfThePull) {
  const std::vector<uint64_t> ids = Numbers(100);
  std::vector<float> values(200, 1);
  // A fake's clock is the number of its pushes and pulls. The first row is of one shard.
  Push({0}, {1, 1});
  const RowClocks clocks = Done(client().PullRows({{1, ids, absl::MakeSpan(values)}})).clocks;
  Push(ids, values);
  RowPush push{1, ids, values, {}};
  push.clocks = &clocks;
  Done(client().PushRows(0, 1, {push}));
  uint64_t sum = 0;
  for (uint32_t shard = 0; shard < 3; ++shard) {
    const std::vector<FakeRows::Batch> pushes = shards_[shard]->row_pushes();
    EXPECT_EQ(pushes[pushes.size() - 2].clock, std::nullopt);
    EXPECT_EQ(pushes.back().clock, clocks.Find(1, shard));
    EXPECT_EQ(pushes.back().clock, pushes.size() - 2);
    sum += pushes.back().clock.value_or(9);
  }
  EXPECT_EQ(sum, 1);
}

TEST_F(ClientRowsTest, OfSeveralMessagesOfAPullTheOldestClockCounts) {
  // 16 MB: each shard gets two messages, the later of which has the larger clock.
  ASSERT_EQ(client().DeclareTables({SgdTable(2, "wide", 1024)}), absl::OkStatus());
  const std::vector<uint64_t> ids = Numbers(4'000);
  std::vector<float> values(1024 * ids.size());
  const RowClocks clocks = Done(client().PullRows({{2, ids, absl::MakeSpan(values)}})).clocks;
  EXPECT_EQ(shard0_.row_pulls().size(), 2u);
  for (uint32_t shard = 0; shard < 3; ++shard) EXPECT_EQ(clocks.Find(2, shard), 0u);
}

TEST_F(ClientRowsTest, SendsARetryWithTheSameSequenceNumberAndBytes) {
  client();
  for (FakeParameterService* shard : shards_) shard->FailNext(1, grpc::Status(grpc::StatusCode::UNAVAILABLE, "busy"));
  EXPECT_EQ(Push(Numbers(100), std::vector<float>(200, 1)).retries, 3);
  for (const FakeParameterService* shard : shards_) {
    const std::vector<v1::PushRowsRequest> requests = shard->row_requests();
    ASSERT_EQ(requests.size(), 2);
    EXPECT_EQ(requests[0].header().sequence(), 1);
    EXPECT_EQ(requests[0].SerializeAsString(), requests[1].SerializeAsString());
  }
  EXPECT_THAT(Pull(Numbers(100)), Each(-1));
}

TEST_F(ClientRowsTest, APushWhoseResponseIsLostIsAppliedOnce) {
  client();
  for (FakeParameterService* shard : shards_) shard->LoseRowResponses(1);
  const RowsResult pushed = Push(Numbers(100), std::vector<float>(200, 1));
  EXPECT_TRUE(pushed.duplicate);
  EXPECT_EQ(pushed.applied, 100);
  EXPECT_THAT(Pull(Numbers(100)), Each(-1));
}

TEST_F(ClientRowsTest, SharesTheSequenceWithPushesOfTensors) {
  ASSERT_EQ(client().Declare({SgdSpec(7, "w", 1)}), absl::OkStatus());
  const float gradient = 1;
  Push(Numbers(100), std::vector<float>(200, 1));
  ASSERT_TRUE(client().Push(0, 1, {{7, {&gradient, 1}, {}}}).Get().ok());
  Push(Numbers(100), std::vector<float>(200, 1));
  EXPECT_THAT(shard0_.sequences(), ElementsAre(1, 2, 3));
  EXPECT_THAT(shard1_.sequences(), ElementsAre(1, 2));
  EXPECT_THAT(client().acknowledged_pushes(), ElementsAre(3, 2, 2));
}

TEST_F(ClientRowsTest, SendsTheHeaderOfThePush) {
  client();
  const std::vector<uint64_t> ids = Numbers(100);
  const std::vector<float> gradients(200, 1);
  Done(client().PushRows(4, 32, {{1, ids, gradients, {}}}, /*last_of_step=*/false, /*schedule_position=*/0.25));
  const v1::PushHeader header = shard2_.last_header();
  EXPECT_EQ(header.job(), "test");
  EXPECT_EQ(header.step(), 4);
  EXPECT_EQ(header.examples(), 32);
  EXPECT_EQ(header.schedule_position(), 0.25);
  EXPECT_EQ(shard2_.row_requests()[0].messages_of_step(), 0);
}

TEST_F(ClientRowsTest, SplitsManyRowsIntoMessagesOf4MiB) {
  // 4,000 rows of 1,024 weights, 16 MB in all.
  ASSERT_EQ(client().DeclareTables({SgdTable(2, "wide", 1024)}), absl::OkStatus());
  const std::vector<uint64_t> ids = Numbers(4'000);
  std::vector<float> gradients(1024 * ids.size()), values(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(i);
  EXPECT_EQ(Done(client().PushRows(0, 1, {{2, ids, gradients, {}}})).created, 4'000);
  Done(client().PullRows({{2, ids, absl::MakeSpan(values)}}));
  size_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != -gradients[i];
  EXPECT_EQ(wrong, 0);
  for (const FakeParameterService* shard : shards_) {
    EXPECT_EQ(shard->row_requests().size(), 2);
    EXPECT_EQ(shard->row_pulls().size(), 2);
    EXPECT_LE(shard->largest_message(), 4 << 20);
    EXPECT_GT(shard->largest_message(), 4'000'000);
  }
}

TEST_F(ClientRowsTest, TheLastMessageOfAStepGoesToEveryShard) {
  client();
  const std::vector<uint64_t> ids = {5};
  const std::vector<float> gradients = {1, 2};
  EXPECT_EQ(Done(client().PushRows(3, 1, {{1, ids, gradients, {}}}, /*last_of_step=*/true)).applied, 1);
  for (const FakeParameterService* shard : shards_) {
    ASSERT_EQ(shard->row_requests().size(), 1);
    EXPECT_EQ(shard->row_requests()[0].messages_of_step(), 1);
    EXPECT_EQ(shard->row_requests()[0].header().step(), 3);
  }
  EXPECT_EQ(PushedRows(), 1);
}

TEST_F(ClientRowsTest, OnlyTheLastOfSeveralMessagesEndsTheStep) {
  ASSERT_EQ(client().DeclareTables({SgdTable(2, "wide", 1024)}), absl::OkStatus());
  const std::vector<uint64_t> ids = Numbers(4'000);
  const std::vector<float> gradients(1024 * ids.size(), 1);
  Done(client().PushRows(0, 1, {{2, ids, gradients, {}}}, /*last_of_step=*/true));
  for (const FakeParameterService* shard : shards_) {
    ASSERT_EQ(shard->row_requests().size(), 2);
    for (const v1::PushRowsRequest& request : shard->row_requests()) {
      EXPECT_EQ(request.messages_of_step(), request.header().sequence() == 2 ? 2 : 0);
    }
  }
}

TEST_F(ClientRowsTest, TheLastMessageCountsThoseOfEarlierPushes) {
  client();
  const std::vector<uint64_t> ids = Numbers(100);
  const std::vector<float> gradients(200, 1);
  Done(client().PushRows(3, 1, {{1, ids, gradients, {}}}));
  Done(client().PushRows(3, 1, {}, /*last_of_step=*/true));
  for (const FakeParameterService* shard : shards_) {
    ASSERT_EQ(shard->row_requests().size(), 2);
    EXPECT_EQ(shard->row_requests()[0].messages_of_step(), 0);
    EXPECT_EQ(shard->row_requests()[1].messages_of_step(), 2);
  }
}

TEST_F(ClientRowsTest, AStepWithoutTablesEndsNowhere) {
  client_ = Connected();
  EXPECT_EQ(Done(client_->PushRows(0, 1, {}, /*last_of_step=*/true)).applied, 0);
  for (const FakeParameterService* shard : shards_) EXPECT_THAT(shard->row_requests(), IsEmpty());
}

TEST_F(ClientRowsTest, APushOfNoExamplesSendsNoRows) {
  client();
  const std::vector<uint64_t> ids = {5};
  const std::vector<float> gradients = {1, 2};
  Done(client().PushRows(0, 0, {{1, ids, gradients, {}}}, /*last_of_step=*/true));
  EXPECT_EQ(PushedRows(), 0);
  EXPECT_EQ(shard0_.row_requests()[0].messages_of_step(), 1);
}

TEST_F(ClientRowsTest, RefusesAnUnknownTable) {
  const std::vector<uint64_t> ids = {5};
  std::vector<float> values(2);
  EXPECT_EQ(Refused(client().PullRows({{4, ids, absl::MakeSpan(values)}})), "table 4 was not declared");
  EXPECT_EQ(Refused(client().PushRows(0, 1, {{4, ids, values, {}}})), "table 4 was not declared");
}

TEST_F(ClientRowsTest, RefusesATableThatIsGivenTwice) {
  const std::vector<uint64_t> ids = {5};
  std::vector<float> values(2);
  const RowPush push = {1, ids, values, {}};
  EXPECT_EQ(Refused(client().PushRows(0, 1, {push, push})), "table \"ids\" is given twice");
  const RowPull pull = {1, ids, absl::MakeSpan(values)};
  EXPECT_EQ(Refused(client().PullRows({pull, pull})), "table \"ids\" is given twice");
}

TEST_F(ClientRowsTest, RefusesSizesThatDoNotFit) {
  const std::vector<uint64_t> ids = {5, 6};
  std::vector<float> three(3), four(4);
  std::vector<uint32_t> versions(1);
  std::vector<uint8_t> present(3);
  EXPECT_EQ(Refused(client().PushRows(0, 1, {{1, ids, three, {}}})),
            "table \"ids\": gradients: got 3 elements, want 4");
  EXPECT_EQ(Refused(client().PushRows(0, 1, {{1, ids, four, versions}})),
            "table \"ids\": versions: got 1 elements, want 2");
  EXPECT_EQ(Refused(client().PullRows({{1, ids, absl::MakeSpan(three)}})),
            "table \"ids\": memory for the values: got 3 elements, want 4");
  RowPull pull = {1, ids, absl::MakeSpan(four)};
  pull.versions = absl::MakeSpan(versions);
  EXPECT_EQ(Refused(client().PullRows({pull})), "table \"ids\": memory for the versions: got 1 elements, want 2");
  pull.versions = {};
  pull.present = absl::MakeSpan(present);
  EXPECT_EQ(Refused(client().PullRows({pull})), "table \"ids\": memory for present rows: got 3 elements, want 2");
}

TEST_F(ClientRowsTest, SendsRowsInTheJobsEncodings) {
  options_.codec.set_gradients(v1::ENCODING_BF16);
  options_.codec.set_values(v1::ENCODING_FP16);
  Push({5}, {1.00390625, 2});
  EXPECT_THAT(Pull({5}), ElementsAre(-1, -2)) << "bf16 has 8 bits of precision";
  for (const FakeParameterService* shard : shards_) {
    for (const FakeRows::Batch& push : shard->row_pushes()) EXPECT_EQ(push.encoding, v1::ENCODING_BF16);
    for (const FakeRows::Batch& pull : shard->row_pulls()) EXPECT_EQ(pull.encoding, v1::ENCODING_FP16);
  }
}

TEST_F(ClientRowsTest, SendsRowsAsFp32IfTheJobsEncodingHasBlocks) {
  options_.codec.set_gradients(v1::ENCODING_SIGN);
  options_.codec.set_values(v1::ENCODING_INT8);
  Push({5}, {1.00390625, 2});
  EXPECT_THAT(Pull({5}), ElementsAre(-1.00390625, -2));
}

TEST_F(ClientRowsTest, NamesTheShardOfADamagedResponse) {
  Push(Numbers(100), std::vector<float>(200, 1));
  shard1_.SpoilAnswers();
  std::vector<float> values(200);
  const std::vector<uint64_t> ids = Numbers(100);
  const absl::Status status = client().PullRows({{1, ids, absl::MakeSpan(values)}}).Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("shard 1 at 127.0.0.1:"));
  EXPECT_THAT(status.message(), HasSubstr("pull rows: response: table 1: "));
}

TEST_F(ClientRowsTest, ReportsTheStepsThatItEndedToAShardThatMayHaveLostThem) {
  options_.durability.set_mode(v1::Durability::WAL);
  client();
  Done(client().PushRows(3, 1, {}, /*last_of_step=*/true));
  const std::vector<uint64_t> ids = Numbers(100);
  const std::vector<float> gradients(200, 1);
  shard0_.FailNext(1, grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting"));
  Done(client().PushRows(4, 1, {{1, ids, gradients, {}}}));
  EXPECT_EQ(shard0_.AwaitReport(1).ended_steps(), 4) << "step 4 has not ended";
  EXPECT_EQ(shard0_.AwaitReport(1).slices_size(), 0);
  // The shard may have lost an earlier message of the step.
  Done(client().PushRows(4, 1, {}, /*last_of_step=*/true));
  EXPECT_EQ(shard0_.AwaitReport(2).ended_steps(), 5);
  for (uint64_t step : {5, 6, 7}) Done(client().PushRows(step, 1, {}, /*last_of_step=*/true));
  EXPECT_EQ(shard0_.reports(), 2);
}

TEST_F(ClientRowsTest, AWorkerNeedNotDeclareWhatTheCoordinatorHasPlaced) {
  FakeCoordinatorService coordinator(options_.shards);
  FakeServer server(&coordinator);
  options_.shards.clear();
  options_.coordinator = server.address();
  Push({5}, {1, 2});
  const std::unique_ptr<Client> other = Connected();
  const std::vector<uint64_t> ids = {5};
  std::vector<float> values(2);
  Done(other->PullRows({{1, ids, absl::MakeSpan(values)}}));
  EXPECT_THAT(values, ElementsAre(-1, -2));
}

}  // namespace
}  // namespace ballast
