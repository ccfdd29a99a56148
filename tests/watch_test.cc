// SPDX-License-Identifier: Apache-2.0
// Copies of tables that follow the servers of a job, all of them real and in this process.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/watch/row_copy.h"
#include "client/watch/row_watcher.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/grpcpp.h"
#include "tests/testing/cluster.h"
#include "tests/testing/raw_call.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTable = 1;
constexpr uint32_t kDim = 4;
constexpr size_t kIds = 2000;
constexpr absl::Duration kTimeout = absl::Seconds(60);

v1::TableSpec Spec() { return SgdTable(kTable, "rows", kDim); }

std::unique_ptr<Client> JoinTable(ClientOptions options) {
  options.policy.mutable_async();
  auto client = Client::Connect(std::move(options));
  EXPECT_TRUE(client.ok()) << client.status();
  if (!client.ok()) return nullptr;
  EXPECT_EQ((*client)->DeclareTables({Spec()}), absl::OkStatus());
  return *std::move(client);
}

std::vector<uint64_t> RandomIds(std::mt19937_64& random, size_t count) {
  std::vector<uint64_t> ids(count);
  for (uint64_t& id : ids) id = random() % kIds;
  return ids;
}

// Adds 1 to the weights of the rows.
void Push(Client& client, const std::vector<uint64_t>& ids) {
  const std::vector<float> gradients(ids.size() * kDim, -1);
  const auto result = client.PushRows(0, 1, {{kTable, ids, gradients, {}}}, true).Get();
  ASSERT_TRUE(result.ok()) << result.status();
}

// The servers' rows of ids 0 to kIds - 1, and which of them exist.
struct Pulled {
  std::vector<float> values = std::vector<float>(kIds * kDim);
  std::vector<uint8_t> present = std::vector<uint8_t>(kIds);
};
Pulled PullAll(Client& client) {
  std::vector<uint64_t> ids(kIds);
  std::iota(ids.begin(), ids.end(), 0);
  Pulled pulled;
  RowPull pull{kTable, ids, absl::MakeSpan(pulled.values)};
  pull.present = absl::MakeSpan(pulled.present);
  const auto result = client.PullRows({pull}).Get();
  EXPECT_TRUE(result.ok()) << result.status();
  return pulled;
}

// A copy, and waits until it has what is wanted. Thread safety: all methods may be called from any thread.
class Follower {
 public:
  RowWatcherOptions Options(const std::string& coordinator) {
    RowWatcherOptions options;
    options.coordinator = coordinator;
    options.tables = {Spec()};
    options.on_update = [this](const RangeUpdate& update) {
      copy_.Apply(update);
      absl::MutexLock lock(&mutex_);
      ++updates_;
    };
    return options;
  }

  // Waits until `wanted` holds for the copy.
  template <typename Wanted>
  bool Await(Wanted wanted) {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (true) {
      uint64_t seen = 0;
      {
        absl::MutexLock lock(&mutex_);
        seen = updates_;
      }
      if (wanted()) return true;
      const auto changed = [&] {
        mutex_.AssertReaderHeld();
        return updates_ != seen;
      };
      absl::MutexLock lock(&mutex_);
      if (!mutex_.AwaitWithDeadline(absl::Condition(&changed), deadline)) return false;
    }
  }

  bool Equals(const Pulled& pulled) const {
    float values[kDim];
    for (uint64_t id = 0; id < kIds; ++id) {
      const bool present = copy_.Find(id, values);
      if (present != (pulled.present[id] != 0)) return false;
      if (present && !std::equal(values, values + kDim, &pulled.values[id * kDim])) return false;
    }
    return true;
  }

  float First(uint64_t id) const {
    float values[kDim] = {};
    return copy_.Find(id, values) ? values[0] : 0;
  }

  RowCopy& copy() { return copy_; }

 private:
  RowCopy copy_{Spec()};
  absl::Mutex mutex_;
  uint64_t updates_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::unique_ptr<RowWatcher> Start(RowWatcherOptions options) {
  auto watcher = RowWatcher::Start(std::move(options));
  EXPECT_TRUE(watcher.ok()) << watcher.status();
  return watcher.ok() ? *std::move(watcher) : nullptr;
}

class WatchTest : public testing::Test {
 protected:
  Cluster cluster_{2, 1};
  std::unique_ptr<Client> client_ = JoinTable(cluster_.Options(0));
  const std::string address_ = cluster_.Options(0).coordinator;
  std::mt19937_64 random_{7};
};

TEST_F(WatchTest, ACopyEqualsTheServersRowsAfterRandomPushes) {
  Push(*client_, RandomIds(random_, 500));
  Follower follower;
  const auto watcher = Start(follower.Options(address_));
  ASSERT_NE(watcher, nullptr);
  ASSERT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus());
  for (int round = 0; round < 5; ++round) {
    for (int push = 0; push < 20; ++push) Push(*client_, RandomIds(random_, 100));
    const Pulled pulled = PullAll(*client_);
    ASSERT_TRUE(follower.Await([&] { return follower.Equals(pulled); })) << watcher->status();
  }
  EXPECT_EQ(watcher->counts().wholes, 4096u) << "each range is received whole once";
  EXPECT_GT(watcher->counts().updates, 4096u);
  EXPECT_EQ(watcher->counts().rejected, 0u);
  EXPECT_EQ(watcher->counts().reconnects, 0u);
}

TEST_F(WatchTest, OnceEndsWithTheRowsOfTheMoment) {
  Push(*client_, RandomIds(random_, 500));
  Follower follower;
  RowWatcherOptions options = follower.Options(address_);
  options.once = true;
  options.encoding = v1::ENCODING_BF16;
  const auto watcher = Start(std::move(options));
  ASSERT_NE(watcher, nullptr);
  ASSERT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus());
  EXPECT_TRUE(follower.Equals(PullAll(*client_)));
  EXPECT_EQ(watcher->counts().updates, 4096u);
}

TEST_F(WatchTest, APushIsSeenWithinASecondOrSo) {
  Follower follower;
  const auto watcher = Start(follower.Options(address_));
  ASSERT_NE(watcher, nullptr);
  ASSERT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus());
  std::vector<double> milliseconds;
  for (int i = 1; i <= 50; ++i) {
    const uint64_t id = random_() % kIds;
    const float before = follower.First(id);
    const absl::Time start = absl::Now();
    Push(*client_, {id});
    ASSERT_TRUE(follower.Await([&] { return follower.First(id) == before + 1; }));
    milliseconds.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  RecordProperty("push_to_seen_p50_ms", absl::StrCat(milliseconds[25]));
  RecordProperty("push_to_seen_p99_ms", absl::StrCat(milliseconds[49]));
  std::cout << "push to seen, of 50: p50 " << milliseconds[25] << " ms, p99 " << milliseconds[49] << " ms\n";
}

TEST_F(WatchTest, WatchersDoNotKeepPushesWaitingWhileTheyDoNotRead) {
  // Nobody reads from this stream.
  const auto stub = v1::ParameterService::NewStub(OpenConnection(cluster_.server(0).address()));
  grpc::ClientContext context;
  v1::WatchRowsRequest request;
  request.set_job("cluster");
  request.add_table_ids(kTable);
  const auto stuck = stub->WatchRows(&context, request);
  Follower follower;
  const auto watcher = Start(follower.Options(address_));
  ASSERT_NE(watcher, nullptr);
  ASSERT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus());
  for (int push = 0; push < 50; ++push) Push(*client_, RandomIds(random_, 1000));
  const Pulled pulled = PullAll(*client_);
  EXPECT_TRUE(follower.Await([&] { return follower.Equals(pulled); }));
  context.TryCancel();
  stuck->Finish();
}

TEST_F(WatchTest, WatchersBeyondTheLimitAreRefusedUntilOneEnds) {
  constexpr int kWatchers = 100;
  struct Open {
    std::shared_ptr<grpc::Channel> channel;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchRowsResponse>> reader;
    bool accepted = false;
  };
  std::vector<std::unique_ptr<Open>> open;
  v1::WatchRowsRequest request;
  request.set_job("cluster");
  request.add_table_ids(kTable);
  int accepted = 0;
  for (int i = 0; i < kWatchers; ++i) {
    auto one = std::make_unique<Open>();
    one->channel = i % 50 == 0 ? OpenConnection(cluster_.server(0).address()) : open.back()->channel;
    one->context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
    one->reader = v1::ParameterService::NewStub(one->channel)->WatchRows(&one->context, request);
    v1::WatchRowsResponse response;
    one->accepted = one->reader->Read(&response);
    accepted += one->accepted ? 1 : 0;
    if (!one->accepted) {
      const grpc::Status status = one->reader->Finish();
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
      EXPECT_THAT(status.error_message(), HasSubstr("want at most 64 per shard"));
    }
    open.push_back(std::move(one));
  }
  EXPECT_EQ(accepted, 64);
  for (const auto& one : open) {
    if (!one->accepted) continue;
    one->context.TryCancel();
    EXPECT_EQ(one->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  Follower follower;
  const auto watcher = Start(follower.Options(address_));
  ASSERT_NE(watcher, nullptr);
  EXPECT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus()) << "the places of those that ended are free";
}

TEST_F(WatchTest, RequestsThatMakeNoSenseAreRefused) {
  const auto stub = v1::ParameterService::NewStub(OpenConnection(cluster_.server(1).address()));
  const auto refused = [&](const std::string& text) {
    grpc::ClientContext context;
    v1::WatchRowsRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
    v1::WatchRowsResponse response;
    const auto reader = stub->WatchRows(&context, request);
    EXPECT_FALSE(reader->Read(&response)) << text;
    return reader->Finish();
  };
  const auto expect = [&](const std::string& text, grpc::StatusCode code, const std::string& message) {
    const grpc::Status status = refused(text);
    EXPECT_EQ(status.error_code(), code) << text;
    EXPECT_THAT(status.error_message(), HasSubstr(message)) << text;
  };
  using Code = grpc::StatusCode;
  expect("job: 'cluster'", Code::INVALID_ARGUMENT, "shard 1: got no tables, want at least one");
  expect("job: 'cluster' table_ids: [1, 1]", Code::INVALID_ARGUMENT, "got table 1 twice");
  expect("job: 'cluster' table_ids: 9", Code::NOT_FOUND, "9");
  expect("job: 'cluster' table_ids: 1 encoding: ENCODING_SIGN", Code::INVALID_ARGUMENT, "want fp32, fp16 or bf16");
  expect("job: 'cluster' table_ids: 1 after { table_id: 2 }", Code::INVALID_ARGUMENT, "got a range of table 2");
  expect("job: 'cluster' table_ids: 1 after { table_id: 1 range: 7 position: 1 }", Code::INVALID_ARGUMENT,
         "got range 7 of table 1, want one of 2048 to 4095");
  expect("job: 'cluster' table_ids: 1 after { table_id: 1 range: 2048 position: 1 } after { table_id: 1 range: 2048 }",
         Code::INVALID_ARGUMENT, "got range 2048 of table 1 twice");
  expect("job: 'other' table_ids: 1", Code::FAILED_PRECONDITION, "cluster");
  EXPECT_EQ(
      RawCall(OpenConnection(cluster_.server(1).address()), "ParameterService/WatchRows", "\xff", "").error_code(),
      grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(WatchTest, ATableThatTheJobDoesNotHaveIsNotFound) {
  Follower follower;
  RowWatcherOptions options = follower.Options(address_);
  options.tables = {SgdTable(8, "other", 1)};
  EXPECT_EQ(RowWatcher::Start(options).status().code(), absl::StatusCode::kNotFound);
  options.tables = {};
  EXPECT_EQ(RowWatcher::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

// One server with a log.
class WatchAfterRestartTest : public testing::Test {
 protected:
  WatchAfterRestartTest() {
    std::filesystem::remove_all(folder_);
    StartServer();
  }

  void StartServer() {
    Server::Options options;
    options.workers = 1;
    options.max_state_bytes = uint64_t{1} << 28;
    options.state_dir = folder_;
    if (!address_.empty()) options.listen = address_;
    server_ = ballast::StartServer(std::move(options));
    ASSERT_NE(server_, nullptr);
    address_ = server_->address();
  }

  std::unique_ptr<Client> Join(uint64_t incarnation) {
    ClientOptions options;
    options.coordinator = address_;
    options.job = "returns";
    options.durability.set_mode(v1::Durability::WAL);
    options.incarnation = incarnation;
    return JoinTable(std::move(options));
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/watch_after_restart");
  std::string address_;
  std::unique_ptr<Server> server_;
  std::mt19937_64 random_{7};
};

TEST_F(WatchAfterRestartTest, ACopyFollowsTheServerThatReturns) {
  auto client = Join(1);
  ASSERT_NE(client, nullptr);
  Push(*client, RandomIds(random_, 500));
  Follower follower;
  const auto watcher = Start(follower.Options(address_));
  ASSERT_NE(watcher, nullptr);
  ASSERT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus());
  client.reset();
  server_.reset();
  ASSERT_NO_FATAL_FAILURE(StartServer());
  client = Join(2);
  ASSERT_NE(client, nullptr);
  Push(*client, RandomIds(random_, 500));
  const Pulled pulled = PullAll(*client);
  ASSERT_TRUE(follower.Await([&] { return follower.Equals(pulled); })) << watcher->status();
  EXPECT_EQ(watcher->counts().rejected, 0u);
  EXPECT_GE(watcher->counts().reconnects, 1u);
  EXPECT_GE(watcher->counts().wholes, 4096u);
}

}  // namespace
}  // namespace ballast
