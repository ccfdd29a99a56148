// SPDX-License-Identifier: Apache-2.0
#include "client/watch/row_watcher.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/tables/row_chain.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTable = 1;
constexpr uint32_t kRanges = 64;
constexpr absl::Duration kTimeout = absl::Seconds(60);

v1::TableSpec Spec() {
  v1::TableSpec spec = SgdTable(kTable, "rows", 1);
  spec.set_range_bits(6);
  return spec;
}

// A delta without rows.
v1::RowDelta Delta(uint32_t range, uint64_t from, uint64_t to, uint64_t before = 0) {
  v1::RowDelta delta;
  delta.set_table_id(kTable);
  delta.set_range(range);
  delta.set_from_position(from);
  delta.set_to_position(to);
  delta.set_encoding(v1::ENCODING_FP32);
  delta.set_chain(NextRowChain(before, "", "", ""));
  return delta;
}

// A shard whose calls do what the test says, one after the other; the last one's behavior stays.
class ScriptedShard : public v1::ParameterService::Service {
 public:
  using Call = std::function<grpc::Status(grpc::ServerContext*, grpc::ServerWriter<v1::WatchRowsResponse>*)>;

  explicit ScriptedShard(std::vector<Call> calls) : calls_(calls.begin(), calls.end()) {}

  std::vector<v1::WatchRowsRequest> requests() const {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }
  bool AwaitRequests(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&] {
      mutex_.AssertReaderHeld();
      return requests_.size() >= count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kTimeout);
  }

 private:
  grpc::Status WatchRows(grpc::ServerContext* context, const v1::WatchRowsRequest* request,
                         grpc::ServerWriter<v1::WatchRowsResponse>* writer) override {
    Call call;
    {
      absl::MutexLock lock(&mutex_);
      requests_.push_back(*request);
      call = calls_.front();
      if (calls_.size() > 1) calls_.pop_front();
    }
    return call(context, writer);
  }

  mutable absl::Mutex mutex_;
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::WatchRowsRequest> requests_ ABSL_GUARDED_BY(mutex_);
};

void Write(grpc::ServerWriter<v1::WatchRowsResponse>* writer, const std::vector<v1::RowDelta>& deltas) {
  v1::WatchRowsResponse response;
  response.mutable_deltas()->Assign(deltas.begin(), deltas.end());
  writer->Write(response);
}

std::vector<v1::RowDelta> AllRanges() {
  std::vector<v1::RowDelta> deltas;
  for (uint32_t range = 0; range < kRanges; ++range) deltas.push_back(Delta(range, 0, 1));
  return deltas;
}

// Sends these deltas, then nothing until the caller cancels.
ScriptedShard::Call SendAndWait(std::vector<v1::RowDelta> deltas) {
  return [deltas = std::move(deltas)](grpc::ServerContext* context, grpc::ServerWriter<v1::WatchRowsResponse>* writer) {
    if (!deltas.empty()) Write(writer, deltas);
    // Sends nothing more, not even signs of life.
    absl::Mutex mutex;
    absl::MutexLock lock(&mutex);
    const auto never = [] { return false; };
    while (!context->IsCancelled()) mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(20));
    return grpc::Status::CANCELLED;
  };
}

ScriptedShard::Call SendAndEnd(std::vector<v1::RowDelta> deltas, const grpc::Status& status) {
  return [deltas = std::move(deltas), status](grpc::ServerContext*, grpc::ServerWriter<v1::WatchRowsResponse>* writer) {
    if (!deltas.empty()) Write(writer, deltas);
    return status;
  };
}

class RowWatcherTest : public testing::Test {
 protected:
  std::unique_ptr<RowWatcher> Start(std::vector<ScriptedShard::Call> calls, bool once = false) {
    shard_ = std::make_unique<ScriptedShard>(std::move(calls));
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(shard_.get());
    server_ = builder.BuildAndStart();
    options_.shards = {absl::StrCat("127.0.0.1:", port)};
    options_.tables = {Spec()};
    options_.once = once;
    options_.on_update = [this](const RangeUpdate& update) {
      absl::MutexLock lock(&mutex_);
      updates_.push_back(update);
    };
    auto watcher = RowWatcher::Start(options_);
    EXPECT_TRUE(watcher.ok()) << watcher.status();
    return *std::move(watcher);
  }

  bool AwaitUpdates(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&] {
      mutex_.AssertReaderHeld();
      return updates_.size() >= count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kTimeout);
  }

  RowWatcherOptions options_;
  std::unique_ptr<ScriptedShard> shard_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  std::vector<RangeUpdate> updates_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(RowWatcherTest, ARangeWithALostDeltaIsAskedForWholeAndTheOthersGoOn) {
  std::vector<v1::RowDelta> deltas = AllRanges();
  const uint64_t chain = deltas[7].chain();
  // The delta from 1 to 2 is lost.
  deltas.push_back(Delta(7, 2, 3, chain));
  const auto watcher = Start({SendAndWait(deltas), SendAndWait({Delta(7, 0, 3)})});
  ASSERT_TRUE(AwaitUpdates(kRanges + 1));
  EXPECT_EQ(watcher->counts().rejected, 1u);
  EXPECT_EQ(watcher->counts().reconnects, 1u);
  EXPECT_EQ(watcher->counts().wholes, kRanges + 1);
  ASSERT_EQ(shard_->requests().size(), 2u);
  EXPECT_EQ(shard_->requests()[0].after_size(), 0);
  const v1::WatchRowsRequest again = shard_->requests()[1];
  EXPECT_EQ(again.after_size(), static_cast<int>(kRanges) - 1);
  for (const v1::RangePosition& after : again.after()) {
    EXPECT_NE(after.range(), 7u);
    EXPECT_EQ(after.position(), 1u);
    EXPECT_EQ(after.chain(), chain);
  }
  EXPECT_EQ(watcher->status(), absl::OkStatus());
}

TEST_F(RowWatcherTest, RepeatedAndDamagedDeltasAreNotPassedOn) {
  std::vector<v1::RowDelta> repeated = AllRanges();
  const v1::RowDelta change = Delta(7, 1, 2, repeated[7].chain());
  repeated.push_back(change);
  repeated.push_back(change);
  v1::RowDelta damaged = Delta(7, 0, 2);
  damaged.set_evicted("12345678");
  const auto watcher = Start({SendAndWait(repeated), SendAndWait({damaged}), SendAndWait({Delta(7, 0, 2)})});
  ASSERT_TRUE(AwaitUpdates(kRanges + 2));
  EXPECT_EQ(watcher->counts().rejected, 2u);
  EXPECT_EQ(watcher->counts().updates, kRanges + 2);
}

TEST_F(RowWatcherTest, GoesOnWhereAStreamEnded) {
  const std::vector<v1::RowDelta> all = AllRanges();
  const auto watcher = Start({SendAndEnd(all, grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarts")),
                              SendAndWait({Delta(9, 1, 2, all[9].chain())})});
  ASSERT_TRUE(AwaitUpdates(kRanges + 1));
  EXPECT_EQ(watcher->counts().rejected, 0u);
  EXPECT_EQ(shard_->requests()[1].after_size(), static_cast<int>(kRanges));
}

TEST_F(RowWatcherTest, AShardThatIsSilentIsCalledAgain) {
  options_.silence = absl::Milliseconds(50);
  const auto watcher = Start({SendAndWait({}), SendAndWait(AllRanges())});
  EXPECT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus());
  EXPECT_GE(watcher->counts().reconnects, 1u);
}

TEST_F(RowWatcherTest, SaysWhileAShardDoesNotAnswer) {
  const std::vector<v1::RowDelta> all = AllRanges();
  absl::Notification back;
  const ScriptedShard::Call returns = SendAndWait({Delta(9, 1, 2, all[9].chain())});
  const auto watcher = Start({SendAndEnd(all, grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarts")),
                              SendAndEnd({}, grpc::Status(grpc::StatusCode::UNAVAILABLE, "is away")),
                              [&](grpc::ServerContext* context, grpc::ServerWriter<v1::WatchRowsResponse>* writer) {
                                back.WaitForNotification();
                                return returns(context, writer);
                              }});
  ASSERT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus());
  ASSERT_TRUE(shard_->AwaitRequests(3));
  EXPECT_THAT(std::string(watcher->condition().message()), HasSubstr("is away"));
  EXPECT_EQ(watcher->status(), absl::OkStatus()) << "it is called again";
  back.Notify();
  ASSERT_TRUE(AwaitUpdates(kRanges + 1));
  EXPECT_EQ(watcher->condition(), absl::OkStatus());
}

TEST_F(RowWatcherTest, ErrorsThatAnotherCallWouldHaveTooAreFinal) {
  const auto watcher = Start({SendAndEnd({}, grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "not for you"))});
  const absl::Status status = watcher->AwaitComplete(kTimeout);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard 0 at 127.0.0.1:"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("not for you"));
}

TEST_F(RowWatcherTest, AShardThatStaysAwayIsGivenUpAfterTheTimeout) {
  options_.retry_timeout = absl::Milliseconds(200);
  const auto watcher = Start({SendAndEnd({}, grpc::Status(grpc::StatusCode::UNAVAILABLE, "is away"))});
  EXPECT_EQ(watcher->AwaitComplete(kTimeout).code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(watcher->counts().reconnects, 1u);
}

TEST_F(RowWatcherTest, OnceEndsWithTheLastRangeAndPassesEachOnOnce) {
  std::vector<v1::RowDelta> half = AllRanges();
  half.resize(kRanges / 2);
  const auto watcher = Start({SendAndEnd(half, grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarts")),
                              SendAndEnd(AllRanges(), grpc::Status::OK)},
                             /*once=*/true);
  EXPECT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus());
  EXPECT_EQ(watcher->counts().updates, kRanges);
  EXPECT_TRUE(shard_->requests()[1].once());
}

TEST_F(RowWatcherTest, AnEndBeforeTheLastRangeIsNoEnd) {
  std::vector<v1::RowDelta> half = AllRanges();
  half.resize(kRanges / 2);
  const auto watcher =
      Start({SendAndEnd(half, grpc::Status::OK), SendAndEnd(AllRanges(), grpc::Status::OK)}, /*once=*/true);
  EXPECT_EQ(watcher->AwaitComplete(kTimeout), absl::OkStatus());
  EXPECT_EQ(shard_->requests().size(), 2u);
}

TEST_F(RowWatcherTest, WaitsEndWithTheRangesThatAreMissing) {
  std::vector<v1::RowDelta> half = AllRanges();
  half.resize(kRanges / 2);
  const auto watcher = Start({SendAndWait(half)});
  ASSERT_TRUE(AwaitUpdates(kRanges / 2));
  EXPECT_EQ(watcher->AwaitComplete(absl::Milliseconds(1)).message(),
            "watch rows: timed out after 1ms waiting for 32 ranges");
}

}  // namespace
}  // namespace ballast
