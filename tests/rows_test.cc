// SPDX-License-Identifier: Apache-2.0
// Rows of sparse tables from clients to servers of one job, all of them real and in this process.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "tests/fault/proxy/fault_proxy.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kTable = 1;
constexpr uint32_t kDim = 16;

ClientOptions AsyncOptions(const Cluster& cluster, uint32_t worker) {
  ClientOptions options = cluster.Options(worker);
  options.policy.mutable_async();
  return options;
}

std::unique_ptr<Client> JoinTables(const ClientOptions& options, const std::vector<v1::TableSpec>& specs) {
  auto client = Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  if (!client.ok()) return nullptr;
  EXPECT_EQ((*client)->DeclareTables(specs), absl::OkStatus());
  return *std::move(client);
}

std::vector<uint64_t> Numbers(size_t count) {
  std::vector<uint64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

RowsResult Done(const Future<RowsResult>& future) {
  EXPECT_TRUE(future.Get().ok()) << future.Get().status();
  return future.Get().value_or(RowsResult());
}

// Adds 1 to every weight of the rows, once per occurrence of an id: the table's learning rate is 1.
RowsResult Count(Client& client, const std::vector<uint64_t>& ids, uint32_t dim = kDim, uint64_t step = 0,
                 bool last_of_step = false) {
  const std::vector<float> gradients(ids.size() * dim, -1);
  return Done(client.PushRows(step, 1, {{kTable, ids, gradients, {}}}, last_of_step));
}

std::vector<float> Pull(Client& client, const std::vector<uint64_t>& ids, uint32_t dim = kDim) {
  std::vector<float> values(ids.size() * dim, -1);
  Done(client.PullRows({{kTable, ids, absl::MakeSpan(values)}}));
  return values;
}

std::vector<v1::GetStatusResponse> StatusOf(Client& client) {
  const auto status = client.GetStatus();
  EXPECT_TRUE(status.ok()) << status.status();
  return status.value_or(std::vector<v1::GetStatusResponse>());
}

uint64_t SharedCalls(Client& client) {
  uint64_t calls = 0;
  for (const v1::GetStatusResponse& shard : StatusOf(client)) calls += shard.shared_calls();
  return calls;
}

// Pulls until messages go through shared memory.
void AwaitSharing(Client& client) {
  const uint64_t before = SharedCalls(client);
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  while (SharedCalls(client) == before && absl::Now() < give_up) Pull(client, Numbers(3000));
  ASSERT_GT(SharedCalls(client), before);
}

struct Transport {
  const char* name;
  uint32_t servers;
  bool shared_memory;
  v1::Encoding encoding;
};

class CountingTableTest : public ::testing::TestWithParam<Transport> {
 protected:
  static constexpr uint32_t kClients = 4;
  static constexpr uint32_t kPushes = 20;
  static constexpr size_t kIds = 3000;

  // Ids in any order, some of them repeated.
  static std::vector<uint64_t> IdsOf(uint32_t worker, uint32_t push) {
    std::mt19937_64 random(worker * kPushes + push);
    std::vector<uint64_t> ids(2000);
    for (uint64_t& id : ids) id = random() % kIds;
    return ids;
  }

  ClientOptions Options(uint32_t worker) const {
    ClientOptions options = AsyncOptions(cluster_, worker);
    options.shared_memory = GetParam().shared_memory;
    options.codec.set_gradients(GetParam().encoding);
    options.codec.set_values(GetParam().encoding);
    return options;
  }

  Cluster cluster_{GetParam().servers, kClients};
};

TEST_P(CountingTableTest, EachGradientOfConcurrentClientsIsAppliedOnce) {
  std::vector<float> want(kIds);
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < kClients; ++worker) {
    for (uint32_t push = 0; push < kPushes; ++push) {
      for (uint64_t id : IdsOf(worker, push)) ++want[id];
    }
    threads.emplace_back([this, worker] {
      const std::unique_ptr<Client> client = JoinTables(Options(worker), {SgdTable(kTable, "counts", kDim)});
      ASSERT_NE(client, nullptr);
      if (GetParam().shared_memory) {
        ASSERT_NO_FATAL_FAILURE(AwaitSharing(*client));
      }
      for (uint32_t push = 0; push < kPushes; ++push) Count(*client, IdsOf(worker, push), kDim, push, true);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::unique_ptr<Client> reader = JoinTables(Options(0), {SgdTable(kTable, "counts", kDim)});
  const std::vector<float> values = Pull(*reader, Numbers(kIds));
  size_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != want[i / kDim];
  EXPECT_EQ(wrong, 0) << "of " << values.size() << " weights, the first " << values[0] << ", want " << want[0];
  uint64_t rows = 0;
  for (const v1::GetStatusResponse& shard : StatusOf(*reader)) {
    ASSERT_EQ(shard.tables_size(), 1);
    EXPECT_EQ(shard.tables(0).clock(), kClients * kPushes) << "each client ended each step at each shard";
    rows += shard.tables(0).rows();
  }
  EXPECT_EQ(rows, kIds);
  EXPECT_EQ(SharedCalls(*reader) > 0, GetParam().shared_memory);
}

INSTANTIATE_TEST_SUITE_P(Transports, CountingTableTest,
                         ::testing::Values(Transport{"OneServerTcp", 1, false, v1::ENCODING_FP32},
                                           Transport{"OneServerShared", 1, true, v1::ENCODING_FP32},
                                           Transport{"ThreeServersTcp", 3, false, v1::ENCODING_FP32},
                                           Transport{"ThreeServersShared", 3, true, v1::ENCODING_FP32},
                                           Transport{"ThreeServersTcpBf16", 3, false, v1::ENCODING_BF16},
                                           Transport{"ThreeServersSharedBf16", 3, true, v1::ENCODING_BF16}),
                         [](const auto& transport) { return transport.param.name; });

TEST(RowsTest, RowsAndTensorsOfOneJobDoNotDisturbEachOther) {
  Cluster cluster(3, 1);
  const std::unique_ptr<Client> client =
      JoinTables(AsyncOptions(cluster, 0), {SgdTable(kTable, "counts", kDim), SgdTable(2, "others", 1)});
  ASSERT_EQ(client->Declare({Spec(7, "w", 12)}), absl::OkStatus());
  const std::vector<uint64_t> ids = Numbers(100);
  const std::vector<float> gradient(12, 1), rows(100 * kDim, -1), others(100, -2);
  std::vector<float> values(12), pulled(100 * kDim), pulled_others(100);
  for (uint64_t step = 0; step < 5; ++step) {
    const Future<PushResult> tensor = client->Push(step, 1, {{7, gradient}});
    Done(client->PushRows(step, 1, {{kTable, ids, rows, {}}, {2, ids, others, {}}}, /*last_of_step=*/true));
    ASSERT_TRUE(tensor.Get().ok()) << tensor.Get().status();
  }
  ASSERT_TRUE(client->Pull(5, {{7, absl::MakeSpan(values)}}).Get().ok());
  Done(client->PullRows({{2, ids, absl::MakeSpan(pulled_others)}, {kTable, ids, absl::MakeSpan(pulled)}}));
  EXPECT_THAT(values, Each(95));
  EXPECT_THAT(pulled, Each(5));
  EXPECT_THAT(pulled_others, Each(10));
}

// Returns the rows after a fixed sequence of pushes with fractional gradients; rows from 600 on get no push.
std::vector<float> AdamRows(uint32_t servers) {
  Cluster cluster(servers, 1);
  v1::TableSpec spec = SgdTable(kTable, "adam", kDim);
  spec.mutable_optimizer()->mutable_adam()->set_learning_rate(0.01);
  spec.mutable_initializer()->mutable_normal()->set_stddev(0.5);
  spec.set_seed(3);
  const std::unique_ptr<Client> client = JoinTables(AsyncOptions(cluster, 0), {spec});
  std::mt19937_64 random(5);
  for (uint64_t step = 0; step < 8; ++step) {
    std::vector<uint64_t> ids(400);
    std::vector<float> gradients(ids.size() * kDim);
    for (uint64_t& id : ids) id = random() % 600;
    for (float& gradient : gradients) gradient = static_cast<float>(random() % 2001) / 1000 - 1;
    Done(client->PushRows(step, 1, {{kTable, ids, gradients, {}}}, /*last_of_step=*/true));
  }
  return Pull(*client, Numbers(1000));
}

TEST(RowsTest, OneServerTwoOrThreeGiveTheSameBits) {
  const std::vector<float> one = AdamRows(1);
  EXPECT_NE(one[0], one[1]);
  EXPECT_TRUE(one == AdamRows(2));
  EXPECT_TRUE(one == AdamRows(3));
}

TEST(RowsTest, APullComputesTheValuesThatARowBeginsWith) {
  Cluster cluster(3, 1);
  v1::TableSpec spec = SgdTable(kTable, "uniform", kDim);
  spec.mutable_initializer()->mutable_uniform()->set_low(-1);
  spec.mutable_initializer()->mutable_uniform()->set_high(1);
  const std::unique_ptr<Client> client = JoinTables(AsyncOptions(cluster, 0), {spec});
  const std::vector<uint64_t> ids = Numbers(500);
  const std::vector<float> before = Pull(*client, ids);
  EXPECT_NE(before[0], before[kDim]);
  for (const v1::GetStatusResponse& shard : StatusOf(*client)) EXPECT_EQ(shard.tables(0).rows(), 0);
  const std::vector<float> zeros(ids.size() * kDim, 0);
  EXPECT_EQ(Done(client->PushRows(0, 1, {{kTable, ids, zeros, {}}})).created, 500);
  EXPECT_TRUE(Pull(*client, ids) == before);
}

TEST(RowsTest, AMillionIdsAreSplitIntoMessagesAndAllArrive) {
  Cluster cluster(1, 1);
  const std::unique_ptr<Client> client = JoinTables(AsyncOptions(cluster, 0), {SgdTable(kTable, "many", 4)});
  const std::vector<uint64_t> ids = Numbers(1'000'000);
  const RowsResult pushed = Count(*client, ids, 4);
  EXPECT_EQ(pushed.applied, 1'000'000);
  EXPECT_EQ(pushed.created, 1'000'000);
  // 24 MB in messages of at most 4 MiB.
  EXPECT_EQ(StatusOf(*client)[0].worker_pushes(0).accepted(), 6);
  const std::vector<float> values = Pull(*client, ids, 4);
  EXPECT_EQ(std::count(values.begin(), values.end(), 1.0f), 4'000'000);
}

TEST(RowsTest, APushOfANewIncarnationIsNoRetryOfTheOldOnes) {
  Cluster cluster(3, 1);
  ClientOptions options = AsyncOptions(cluster, 0);
  options.incarnation = 1;
  const std::vector<uint64_t> ids = Numbers(100);
  const std::unique_ptr<Client> old = JoinTables(options, {SgdTable(kTable, "counts", kDim)});
  Count(*old, ids);
  Count(*old, ids);
  options.incarnation = 2;
  const std::unique_ptr<Client> restarted = JoinTables(options, {SgdTable(kTable, "counts", kDim)});
  EXPECT_FALSE(Count(*restarted, ids).duplicate);
  EXPECT_THAT(Pull(*restarted, ids), Each(3));
  const std::vector<float> gradients(ids.size() * kDim, -1);
  const absl::Status refused = old->PushRows(0, 1, {{kTable, ids, gradients, {}}}).Get().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("incarnation"));
  EXPECT_THAT(Pull(*restarted, ids), Each(3));
}

TEST(RowsTest, ARestartedClientWithAnOldIncarnationsNumbersGetsItsOutcome) {
  Cluster cluster(1, 1);
  ClientOptions options = AsyncOptions(cluster, 0);
  options.incarnation = 1;
  Count(*JoinTables(options, {SgdTable(kTable, "counts", kDim)}), {7, 8});
  const std::unique_ptr<Client> again = JoinTables(options, {SgdTable(kTable, "counts", kDim)});
  const RowsResult duplicate = Count(*again, {7, 8});
  EXPECT_TRUE(duplicate.duplicate);
  EXPECT_EQ(duplicate.created, 2);
  EXPECT_THAT(Pull(*again, {7}), Each(1));
}

// A push whose response is lost with its connection is sent again. The proxy loses the next response, which now and
// then is that of a stream that the client opens anew; then the push is sent once.
TEST(RowsTest, RetriedPushesAreAppliedOnce) {
  Cluster cluster(1, 1);
  const std::unique_ptr<FaultProxy> proxy = *FaultProxy::Start(cluster.server(0).address(), {}, 1);
  ClientOptions options = AsyncOptions(cluster, 0);
  options.coordinator.clear();
  options.shards = {proxy->address()};
  options.shared_memory = false;
  const std::unique_ptr<Client> client = JoinTables(options, {SgdTable(kTable, "counts", kDim)});
  const std::vector<uint64_t> ids = Numbers(200);
  const std::vector<float> gradients(ids.size() * kDim, -1);
  int duplicates = 0, push = 0;
  for (; duplicates < 3 && push < 50; ++push) {
    const uint64_t dropped = proxy->counts().dropped_replies;
    proxy->SetPlan({.drop_replies = 1, .silence = absl::ZeroDuration()});
    const Future<RowsResult> pushed = client->PushRows(push, 1, {{kTable, ids, gradients, {}}});
    while (proxy->counts().dropped_replies == dropped) std::this_thread::yield();
    proxy->SetPlan({});
    const RowsResult result = Done(pushed);
    duplicates += result.duplicate;
    EXPECT_EQ(result.applied, 200);
    EXPECT_EQ(result.created, push == 0 ? 200 : 0) << "the lost response's numbers";
  }
  EXPECT_EQ(duplicates, 3);
  EXPECT_THAT(Pull(*client, ids), Each(push));
}

TEST(RowsTest, StalenessCountsFromTheVersionsThatWerePulled) {
  Cluster cluster(3, 2);
  const std::unique_ptr<Client> slow = JoinTables(AsyncOptions(cluster, 0), {SgdTable(kTable, "counts", kDim)});
  const std::unique_ptr<Client> fast = JoinTables(AsyncOptions(cluster, 1), {SgdTable(kTable, "counts", kDim)});
  Count(*fast, {5, 6});
  const std::vector<uint64_t> ids = {6, 99, 5};
  std::vector<float> values(ids.size() * kDim);
  std::vector<uint32_t> versions(3);
  std::vector<uint8_t> present(3);
  RowPull pull{kTable, ids, absl::MakeSpan(values)};
  pull.versions = absl::MakeSpan(versions);
  pull.present = absl::MakeSpan(present);
  Done(slow->PullRows({pull}));
  EXPECT_THAT(versions, ElementsAre(1, 0, 1));
  EXPECT_THAT(present, ElementsAre(1, 0, 1));
  for (int i = 0; i < 4; ++i) Count(*fast, {5});
  const std::vector<float> gradients(ids.size() * kDim, -1);
  const RowsResult pushed = Done(slow->PushRows(0, 1, {{kTable, ids, gradients, versions}}));
  EXPECT_EQ(pushed.max_staleness, 4);
  EXPECT_EQ(pushed.orphaned, 0);
  EXPECT_EQ(pushed.created, 1);
}

TEST(RowsTest, StalenessOfTheTableCountsFromTheClocksThatWerePulled) {
  Cluster cluster(3, 2);
  const auto join = [&](uint32_t worker) {
    ClientOptions options = AsyncOptions(cluster, worker);
    options.policy.mutable_async()->set_scale_by_staleness(true);
    options.policy.mutable_async()->set_staleness_of(v1::ConsistencyPolicy::TABLE);
    return JoinTables(options, {SgdTable(kTable, "counts", kDim)});
  };
  const std::unique_ptr<Client> slow = join(0), fast = join(1);
  // Rows at all servers.
  const std::vector<uint64_t> ids = Numbers(100);
  std::vector<float> values(ids.size() * kDim);
  const RowsResult pulled = Done(slow->PullRows({{kTable, ids, absl::MakeSpan(values)}}));
  for (uint64_t step = 0; step < 3; ++step) Count(*fast, {5}, kDim, step, /*last_of_step=*/true);
  const std::vector<float> gradients(ids.size() * kDim, -1);
  RowPush push{kTable, ids, gradients, {}};
  push.clocks = &pulled.clocks;
  const RowsResult pushed = Done(slow->PushRows(0, 1, {push}, /*last_of_step=*/true));
  EXPECT_EQ(pushed.max_staleness, 3);
  EXPECT_EQ(pushed.applied, 100);
  EXPECT_THAT(Pull(*slow, {5}), Each(3.25));
  EXPECT_THAT(Pull(*slow, Numbers(5)), Each(0.25)) << "rows that nobody else had changed";
}

TEST(RowsTest, ATableDeclaredTwiceDifferentlyIsRefused) {
  Cluster cluster(3, 2);
  const std::unique_ptr<Client> first = JoinTables(AsyncOptions(cluster, 0), {SgdTable(kTable, "counts", kDim)});
  auto second = Client::Connect(AsyncOptions(cluster, 1));
  ASSERT_TRUE(second.ok()) << second.status();
  const absl::Status refused = (*second)->DeclareTables({SgdTable(kTable, "counts", 8)});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("\"counts\""));
  EXPECT_EQ((*second)->DeclareTables({SgdTable(kTable, "counts", kDim)}), absl::OkStatus());
}

struct TrainedRows {
  std::vector<float> values;
  // 0 for a row that does not exist.
  std::vector<uint32_t> versions;

  bool operator==(const TrainedRows&) const = default;
};

// Workers of a synchronous job, each in its own thread; returns all rows afterwards. `rules` may be empty.
TrainedRows TrainSynchronously(uint32_t servers, uint32_t workers, const v1::TableSpec& rules = {}) {
  constexpr uint64_t kSteps = 12;
  constexpr size_t kRows = 500;
  const Cluster cluster(servers, workers);
  v1::TableSpec spec = SgdTable(kTable, "ids", kDim);
  spec.mutable_optimizer()->mutable_adam()->set_learning_rate(0.01f);
  spec.MergeFrom(rules);
  const auto options = [&](uint32_t worker) {
    ClientOptions options = cluster.Options(worker);
    options.policy.mutable_sync()->set_deterministic(true);
    return options;
  };
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      const auto client = JoinTables(options(worker), {spec});
      std::mt19937_64 random(worker);
      for (uint64_t step = 0; step < kSteps; ++step) {
        std::vector<uint64_t> ids(200);
        for (uint64_t& id : ids) id = random() % kRows;
        std::vector<float> values(ids.size() * kDim), gradients(ids.size() * kDim);
        Done(client->PullRows({{kTable, ids, absl::MakeSpan(values)}}, step));
        for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = values[i] + 0.1f * (random() % 17) - 0.7f;
        // In two calls, the second of which ends the step.
        const size_t half = ids.size() / 2;
        const auto part = [&](size_t begin) {
          return RowPush{kTable,
                         absl::MakeConstSpan(ids).subspan(begin, half),
                         absl::MakeConstSpan(gradients).subspan(begin * kDim, half * kDim),
                         {}};
        };
        const auto first = client->PushRows(step, 1 + worker, {part(0)});
        Done(client->PushRows(step, 1 + worker, {part(half)}, /*last_of_step=*/true));
        Done(first);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto reader = JoinTables(options(0), {spec});
  TrainedRows rows{std::vector<float>(kRows * kDim), std::vector<uint32_t>(kRows)};
  const std::vector<uint64_t> ids = Numbers(kRows);
  RowPull pull{kTable, ids, absl::MakeSpan(rows.values)};
  pull.versions = absl::MakeSpan(rows.versions);
  Done(reader->PullRows({pull}, kSteps));
  return rows;
}

TEST(SynchronousRowsTest, HaveTheSameBitsOnAnyNumberOfServersAndInEachRun) {
  const TrainedRows want = TrainSynchronously(/*servers=*/1, /*workers=*/3);
  EXPECT_EQ(TrainSynchronously(1, 3), want);
  EXPECT_EQ(TrainSynchronously(2, 3), want);
  EXPECT_EQ(TrainSynchronously(4, 3), want);
}

TEST(SynchronousRowsTest, TheSameOnesExistOnAnyNumberOfServers) {
  v1::TableSpec rules;
  rules.set_range_bits(6);
  rules.mutable_admission()->set_min_uses(3);
  rules.mutable_admission()->set_probability(0.8f);
  rules.mutable_eviction()->set_ttl_steps(4);
  rules.mutable_eviction()->set_max_rows(64 * 4);
  rules.mutable_eviction()->set_half_life_steps(3);
  const TrainedRows want = TrainSynchronously(/*servers=*/1, /*workers=*/3, rules);
  const auto existing = std::count_if(want.versions.begin(), want.versions.end(), [](uint32_t v) { return v > 0; });
  EXPECT_GT(existing, 50);
  EXPECT_LT(existing, 64 * 4);
  EXPECT_EQ(TrainSynchronously(1, 3, rules), want);
  EXPECT_EQ(TrainSynchronously(2, 3, rules), want);
  EXPECT_EQ(TrainSynchronously(4, 3, rules), want);
}

// Two workers of a job whose staleness is bounded, and two servers.
class BoundedRowsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Client> Join(uint32_t worker) {
    ClientOptions options = cluster_.Options(worker);
    options.policy.mutable_bounded()->set_steps_ahead(2);
    return JoinTables(options, {SgdTable(kTable, "counts", 1)});
  }

  void Step(Client& client, uint64_t step) {
    Done(Pull(client, step));
    Count(client, ids_, 1, step, /*last_of_step=*/true);
  }

  Future<RowsResult> Pull(Client& client, uint64_t step) {
    return client.PullRows({{kTable, ids_, absl::MakeSpan(values_)}}, step);
  }

  // Returns once that many pulls wait at the servers.
  static void AwaitWaiting(Client& client, uint64_t pulls) {
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    uint64_t waiting = 0;
    while (waiting < pulls && absl::Now() < give_up) {
      waiting = 0;
      for (const v1::GetStatusResponse& shard : StatusOf(client)) waiting += shard.waiting();
    }
    EXPECT_EQ(waiting, pulls);
  }

  const std::vector<uint64_t> ids_ = Numbers(100);
  std::vector<float> values_ = std::vector<float>(100);
  Cluster cluster_{2, 2};
};

TEST_F(BoundedRowsTest, AFastWorkerIsHeldUntilASlowOneEndsItsStep) {
  const std::unique_ptr<Client> fast = Join(0), slow = Join(1);
  for (uint64_t step = 0; step < 3; ++step) Step(*fast, step);
  const Future<RowsResult> held = Pull(*fast, 3);
  AwaitWaiting(*slow, 2);
  Count(*slow, ids_, 1, 0, /*last_of_step=*/true);
  Done(held);
  EXPECT_THAT(values_, Each(4));
}

TEST_F(BoundedRowsTest, AFastWorkerIsHeldUntilASlowOnePauses) {
  const std::unique_ptr<Client> fast = Join(0), slow = Join(1);
  for (uint64_t step = 0; step < 3; ++step) Step(*fast, step);
  const Future<RowsResult> held = Pull(*fast, 3);
  AwaitWaiting(*slow, 2);
  ASSERT_EQ(slow->Pause(), absl::OkStatus());
  Done(held);
  EXPECT_THAT(values_, Each(3));
  // Until it returns, nobody waits for it.
  for (uint64_t step = 3; step < 10; ++step) Step(*fast, step);
}

}  // namespace
}  // namespace ballast
