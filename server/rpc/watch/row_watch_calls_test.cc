// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/watch/row_watch_calls.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/concurrency/clock.h"
#include "common/status/error_reason.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTable = 1;
constexpr uint32_t kDim = 256;

// The generated service with WatchRows alone.
class WatchService : public v1::ParameterService::WithRawCallbackMethod_WatchRows<v1::ParameterService::Service> {
 public:
  explicit WatchService(RowWatchCalls* calls) : calls_(calls) {}
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchRows(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override {
    grpc::ByteBuffer copy(*request);
    v1::WatchRowsRequest watch;
    EXPECT_TRUE(grpc::SerializationTraits<v1::WatchRowsRequest>::Deserialize(&copy, &watch).ok());
    return calls_->Begin(context, std::move(watch));
  }

 private:
  RowWatchCalls* const calls_;
};

// A shard with one table, and the port at which its rows are watched.
class RowWatchCallsTest : public testing::Test {
 protected:
  RowWatchCallsTest() {
    JobConfig job;
    job.name = "job";
    job.policy.mutable_async();
    job.workers = 1;
    OwnedTable table;
    table.spec = SgdTable(kTable, "rows", kDim);
    table.spans.emplace_back().set_count(4096);
    EXPECT_TRUE(shard_.Declare(job, {}, {table}).ok());
    options_.rank = 3;
    options_.serving = [this] {
      return serving_ ? absl::OkStatus() : WithReason(v1::ERROR_REASON_NOT_SERVING, absl::UnavailableError("replaced"));
    };
    options_.executor = &executor_;
    options_.publishers.period = absl::Milliseconds(5);
  }
  ~RowWatchCallsTest() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    executor_.Shutdown();
  }

  void PushRows(size_t count) {
    std::vector<uint64_t> ids(count);
    std::iota(ids.begin(), ids.end(), 0);
    const std::string values(count * kDim * sizeof(float), '\x3f');
    const absl::string_view payload = values;
    const absl::string_view bytes(reinterpret_cast<const char*>(ids.data()), count * sizeof(uint64_t));
    const RowGradientsView view{kTable, bytes, /*unordered=*/true, "", v1::ENCODING_FP32, {&payload, 1}};
    const auto outcome = shard_.PushRows("job", PushTicket{0, 1, ++sequence_, 0, 1, {}}, 0, {&view, 1});
    EXPECT_TRUE(outcome.ok()) << outcome.status();
  }

  void Serve() {
    calls_ = std::make_unique<RowWatchCalls>(&shard_, options_);
    service_ = std::make_unique<WatchService>(calls_.get());
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::ParameterService::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }

  std::unique_ptr<grpc::ClientReader<v1::WatchRowsResponse>> Watch(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::WatchRowsRequest request;
    request.set_job("job");
    request.add_table_ids(kTable);
    return stub_->WatchRows(context, request);
  }

  ParameterShard shard_{ParameterShard::Options{.max_state_bytes = uint64_t{1} << 28}, Clock::Real()};
  std::atomic<bool> serving_{true};
  Executor executor_{2, 1000};
  RowWatchCalls::Options options_;
  std::unique_ptr<RowWatchCalls> calls_;
  std::unique_ptr<WatchService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ParameterService::Stub> stub_;
  uint64_t sequence_ = 0;
};

TEST_F(RowWatchCallsTest, ACallerThatReadsNothingIsCancelled) {
  options_.stall_timeout = absl::Milliseconds(500);
  // More than a connection holds unread.
  PushRows(20'000);
  Serve();
  grpc::ClientContext context;
  const auto reader = Watch(&context);
  const auto await = [&](size_t watchers) {
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (calls_->publishers().watchers() != watchers && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(calls_->publishers().watchers(), watchers);
  };
  await(1);
  await(0);
  // A client of gRPC that reads nothing learns of nothing, either.
  context.TryCancel();
  reader->Finish();
}

TEST_F(RowWatchCallsTest, ASlowCallerGetsEverythingInMessagesOfLimitedSize) {
  PushRows(20'000);
  Serve();
  grpc::ClientContext context;
  const auto reader = Watch(&context);
  size_t rows = 0;
  v1::WatchRowsResponse response;
  while (rows < 20'000 && reader->Read(&response)) {
    EXPECT_LE(response.ByteSizeLong(), size_t{3} << 20);
    for (const v1::RowDelta& delta : response.deltas()) rows += delta.ids().size() / 8;
  }
  EXPECT_EQ(rows, 20'000u);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(RowWatchCallsTest, CallsEndWhenTheProcessNoLongerServesTheShard) {
  Serve();
  grpc::ClientContext context;
  const auto reader = Watch(&context);
  v1::WatchRowsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  serving_ = false;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "shard 3: replaced");
}

TEST_F(RowWatchCallsTest, CloseEndsCallsAndRefusesLaterOnes) {
  Serve();
  grpc::ClientContext first, second;
  const auto open = Watch(&first);
  v1::WatchRowsResponse response;
  ASSERT_TRUE(open->Read(&response));
  calls_->Close(WithReason(v1::ERROR_REASON_DRAINING, absl::UnavailableError("shuts down")));
  while (open->Read(&response)) {
  }
  EXPECT_THAT(open->Finish().error_message(), HasSubstr("shuts down"));
  const auto refused = Watch(&second);
  EXPECT_FALSE(refused->Read(&response));
  EXPECT_THAT(refused->Finish().error_message(), HasSubstr("shuts down"));
}

}  // namespace
}  // namespace ballast
