// SPDX-License-Identifier: Apache-2.0
#include "worker/rows/row_exchange.h"

#include <gmock/gmock.h>

#include <memory>

#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "common/tables/table_spec_fixture.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kTable = 1;

// The output is the row of an example's id, whose weights the shard starts with 0.5. A push subtracts its gradient,
// and a row that begins starts with 0.
class RowExchangeTest : public ::testing::Test {
 protected:
  RowExchangeTest() : device_(CreateCpuDevice(1)), server_(&shard_) {
    const v1::Model config = ParseModel(
        "tables { name: 't' dim: 1 } layers { embedding { table: 't' } } layers { dense { units: 1 no_bias: true } } "
        "loss { mean_squared_error {} }");
    model_ = Model::Create(config, {.id_fields = {"f"}, .max_batch = 4, .devices = {{"cpu", device_.get()}}}).value();
    EXPECT_TRUE(model_->SetParameter(0, {1}).ok());
    ClientOptions options;
    options.shards = {server_.address()};
    options.job = "test";
    options.policy.mutable_async();
    client_ = Client::Connect(std::move(options)).value();
    EXPECT_TRUE(client_->DeclareTables({SgdTable(kTable, "t", 1)}).ok());
    exchange_ = std::make_unique<RowExchange>(model_.get(), client_.get(),
                                              RowExchange::Options{.first_id = kTable, .interrupted = &interrupted_});
  }

  ~RowExchangeTest() override {
    client_->Shutdown("the test ends");
    client_->WaitUntilIdle();
  }

  // A batch with an example for each id.
  static std::vector<BatchRows> Rows(const std::vector<uint64_t>& ids) {
    IdBags bags{.ids = ids};
    for (size_t i = 1; i <= ids.size(); ++i) bags.ends.push_back(i);
    std::vector<BatchRows> rows;
    RowIndexer({{0}}, 1).Index(bags, rows);
    return rows;
  }

  std::vector<float> Fetched(uint64_t batch, uint64_t step, const std::vector<uint64_t>& ids) {
    const auto views = exchange_->Fetch(batch, step, Rows(ids));
    EXPECT_TRUE(views.ok()) << views.status();
    if (!views.ok()) return {};
    views_ = *views;
    return {views_[0].values.begin(), views_[0].values.end()};
  }

  // Computes the gradient of the fetched batch with label 1 for each example, and pushes it.
  void TrainAndPush(uint64_t step, bool last_of_step = true) {
    const std::vector<float> labels(views_[0].ends.size(), 1.0f);
    const int64_t examples = labels.size();
    ASSERT_TRUE(TrainOnce(*model_, {.labels = labels, .examples = examples, .tables = views_}).ok());
    ASSERT_TRUE(exchange_->Push(step, examples, last_of_step, 0.25).ok());
  }

  const std::unique_ptr<Device> device_;
  FakeParameterService shard_;
  FakeServer server_;
  std::atomic<bool> interrupted_{false};
  std::unique_ptr<Model> model_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<RowExchange> exchange_;
  absl::Span<const RowsView> views_;
};

TEST_F(RowExchangeTest, TheNextBatchHasTheGradientsOfTheOneBefore) {
  EXPECT_THAT(Fetched(0, 0, {7, 7}), ElementsAre(0.5f));
  // The mean of two examples, each with the gradient 2 (0.5 - 1).
  TrainAndPush(0);
  ASSERT_TRUE(exchange_->AwaitPushes().ok());
  EXPECT_THAT(Fetched(1, 1, {9, 7}), ElementsAre(0.5f, 1.0f));
  TrainAndPush(1);
  ASSERT_TRUE(exchange_->AwaitPushes().ok());
  const auto pushes = shard_.row_pushes();
  ASSERT_THAT(pushes, SizeIs(2));
  EXPECT_THAT(pushes[0].ids, ElementsAre(7));
  EXPECT_THAT(pushes[0].gradients, ElementsAre(-1.0f));
  EXPECT_THAT(pushes[0].versions, ElementsAre(0));
  const size_t of_seven = pushes[1].ids[0] == 7 ? 0 : 1;
  EXPECT_EQ(pushes[1].versions[of_seven], 1);
  EXPECT_EQ(pushes[1].gradients[of_seven], 0);
  const RowStats stats = exchange_->TakeStats();
  EXPECT_EQ(stats.pulled, 3);
  EXPECT_EQ(stats.pushed, 3);
  EXPECT_EQ(stats.pushes, 2);
  EXPECT_GT(stats.bytes_sent, 0);
  EXPECT_EQ(exchange_->TakeStats().pushes, 0);
}

TEST_F(RowExchangeTest, ABatchThatWasPrefetchedIsPulledOnce) {
  EXPECT_THAT(Fetched(0, 0, {1}), ElementsAre(0.5f));
  ASSERT_TRUE(exchange_->Prefetch(1, 1, Rows({2, 3})).ok());
  TrainAndPush(0);
  EXPECT_THAT(Fetched(1, 1, {2, 3}), ElementsAre(0.5f, 0.5f));
  EXPECT_THAT(shard_.row_pulls(), SizeIs(2));
}

TEST_F(RowExchangeTest, APushHasTheClockOfThePullOfItsBatch) {
  // The fake's clock is the number of pushes and pulls.
  Fetched(0, 0, {1});
  ASSERT_TRUE(exchange_->Prefetch(1, 1, Rows({2, 3})).ok());
  TrainAndPush(0);
  ASSERT_TRUE(exchange_->AwaitPushes().ok());
  Fetched(1, 1, {2, 3});
  TrainAndPush(1);
  ASSERT_TRUE(exchange_->AwaitPushes().ok());
  Fetched(2, 2, {2});
  TrainAndPush(2);
  ASSERT_TRUE(exchange_->AwaitPushes().ok());
  const auto pushes = shard_.row_pushes();
  ASSERT_THAT(pushes, SizeIs(3));
  EXPECT_EQ(pushes[0].clock, 0u);
  EXPECT_THAT(pushes[1].clock, AnyOf(1u, 2u)) << "it was pulled while the first was pushed";
  EXPECT_EQ(pushes[2].clock, 4u);
}

TEST_F(RowExchangeTest, RowsOfAnotherStepArePulledAgain) {
  ASSERT_TRUE(exchange_->Prefetch(1, 1, Rows({2})).ok());
  EXPECT_THAT(Fetched(1, 5, {2}), ElementsAre(0.5f));
  EXPECT_THAT(shard_.row_pulls(), SizeIs(2));
}

TEST_F(RowExchangeTest, AnEvaluationForgetsThePrefetchedBatch) {
  Fetched(0, 0, {1});
  TrainAndPush(0);
  ASSERT_TRUE(exchange_->AwaitPushes().ok());
  ASSERT_TRUE(exchange_->Prefetch(1, 1, Rows({2})).ok());
  const auto views = exchange_->FetchForEvaluation(0, Rows({1}));
  ASSERT_TRUE(views.ok()) << views.status();
  EXPECT_THAT((*views)[0].values, ElementsAre(1.0f));
  EXPECT_THAT(Fetched(1, 1, {2}), ElementsAre(0.5f));
}

TEST_F(RowExchangeTest, StepsWithoutExamplesEnd) {
  ASSERT_TRUE(exchange_->PushNothing(0, /*last_of_step=*/true).ok());
  ASSERT_TRUE(exchange_->AwaitPushes().ok());
  Fetched(0, 1, {1});
  TrainAndPush(1, /*last_of_step=*/false);
  ASSERT_TRUE(exchange_->AwaitPushes().ok());
  const auto requests = shard_.row_requests();
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(requests[0].messages_of_step(), 1);
  EXPECT_THAT(requests[0].gradients(), IsEmpty());
  EXPECT_EQ(requests[1].header().step(), 1);
  EXPECT_EQ(requests[1].messages_of_step(), 0);
  EXPECT_EQ(requests[1].header().schedule_position(), 0.25);
}

TEST_F(RowExchangeTest, ManyBatchesInARowKeepTheirRowsApart) {
  for (uint64_t batch = 0; batch < 20; ++batch) {
    // Each batch has the same row, and one of its own.
    Fetched(batch, batch, {100 + batch, 7});
    ASSERT_TRUE(exchange_->Prefetch(batch + 1, batch + 1, Rows({101 + batch, 7})).ok());
    TrainAndPush(batch);
  }
  ASSERT_TRUE(exchange_->AwaitPushes().ok());
  ASSERT_THAT(shard_.row_pushes(), SizeIs(20));
  for (const FakeRows::Batch& push : shard_.row_pushes()) {
    ASSERT_THAT(push.ids, SizeIs(2));
    // The gradient of the mean over two examples, of a row that has just begun.
    EXPECT_EQ(push.gradients[push.ids[0] == 7 ? 1 : 0], -0.5f);
  }
}

TEST_F(RowExchangeTest, ErrorsOfServersAreReturned) {
  shard_.FailNext(1, {grpc::StatusCode::INVALID_ARGUMENT, "no such table"});
  const auto views = exchange_->Fetch(0, 0, Rows({1}));
  EXPECT_THAT(std::string(views.status().message()), HasSubstr("no such table"));
}

TEST_F(RowExchangeTest, AnInterruptionEndsTheWaitForRows) {
  shard_.Block();
  interrupted_ = true;
  EXPECT_TRUE(absl::IsCancelled(exchange_->Fetch(0, 0, Rows({1})).status()));
  shard_.Release();
}

}  // namespace
}  // namespace ballast
