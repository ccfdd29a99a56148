// SPDX-License-Identifier: Apache-2.0
// Tests both sides of the stream over loopback: a shard that changes all the time, and its standby's shard.
#include "server/replication/standby_journal.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/durability/table_store_fixture.h"
#include "server/replication/standby_receiver.h"
#include "server/rpc/port/access_guard.h"
#include "server/rpc/standby_service.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);
// More tensors than one capture takes.
constexpr uint32_t kTensors = 5000;

// A standby's process, except for its membership in the job.
class Standby {
 public:
  explicit Standby(uint64_t incarnation) {
    receiver_.Begin(incarnation);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    target_.set_incarnation(incarnation);
    target_.set_address(absl::StrCat("127.0.0.1:", port));
  }
  ~Standby() { server_->Shutdown(std::chrono::system_clock::now()); }

  ParameterShard& shard() { return shard_; }
  const v1::StandbyTarget& target() const { return target_; }

 private:
  ParameterShard shard_{{.open_journal = [](const JobConfig&) -> absl::StatusOr<ShardJournal*> { return nullptr; }},
                        Clock::Real()};
  StandbyReceiver receiver_{0, &shard_, [] {}};
  const AccessGuard access_{nullptr, [] { return std::string(); }};
  StandbyServiceAdapter service_{&receiver_, &access_};
  std::unique_ptr<grpc::Server> server_;
  v1::StandbyTarget target_;
};

class StandbyJournalTest : public testing::Test {
 protected:
  StandbyJournalTest() {
    StandbyJournal::Options options;
    options.open = [this](const std::string& address) -> absl::StatusOr<std::unique_ptr<StandbyStream>> {
      on_open_();
      return CallStandby(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    };
    options.log = [this](const std::string& line) {
      absl::MutexLock lock(&mutex_);
      absl::StrAppend(&log_, line, "\n");
    };
    options.timeout = absl::Seconds(20);
    journal_ = std::make_unique<StandbyJournal>(std::move(options), &shard_);
    journal_->BeginServing(1);
  }
  ~StandbyJournalTest() override {
    StopPushing();
    journal_.reset();
  }

  void Declare(uint32_t first, uint32_t tensors, int64_t elements = 3) {
    std::vector<OwnedTensor> declared;
    for (uint32_t id = first; id < first + tensors; ++id) {
      declared.push_back(Tensor(id, absl::StrCat("w", id), elements));
    }
    ASSERT_THAT(shard_.Declare(Job(v1::Durability::STANDBY), std::move(declared)), IsOk());
  }

  // Pushes a gradient of 3 elements for each of the given tensors.
  absl::StatusOr<PushOutcome> Push(uint32_t worker, uint64_t sequence, absl::Span<const uint32_t> tensors) {
    const std::vector<float> values = {1, -2, static_cast<float>(sequence % 5)};
    const absl::string_view bytes = BytesOf(values);
    std::vector<GradientView> gradients;
    for (uint32_t tensor : tensors) gradients.push_back({{tensor, 0}, 0, v1::ENCODING_FP32, {&bytes, 1}});
    return shard_.Push("job", {worker, 1, sequence, 0, 1}, gradients);
  }

  // Both workers push continuously, each push to tensors all over the shard.
  void StartPushing() {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      threads_.emplace_back([this, worker] {
        for (uint64_t sequence = 1; pushing_; ++sequence) {
          std::vector<uint32_t> tensors;
          for (uint32_t i = 0; i < 20; ++i) tensors.push_back(1 + (sequence * 37 + i * 251) % kTensors);
          const auto pushed = Push(worker, sequence, tensors);
          ASSERT_THAT(pushed, IsOk());
          absl::Notification durable;
          shard_.AwaitDurable(*pushed, [&](const absl::Status&) { durable.Notify(); });
          ASSERT_TRUE(durable.WaitForNotificationWithTimeout(kTimeout));
        }
      });
    }
  }
  // Both workers push rows continuously, and now and then new ones.
  void StartPushingRows() {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      threads_.emplace_back([this, worker] {
        for (uint64_t sequence = worker == 0 ? 2 : 1; pushing_; ++sequence) {
          // A clock near the table's, which counts the steps of both.
          const auto pushed = PushRows(shard_, {.ids = 2000 + sequence % 20000,
                                                .value = 0.01f,
                                                .sequence = sequence,
                                                .worker = worker,
                                                .clock = 2 * sequence - 2});
          ASSERT_THAT(pushed, IsOk());
          absl::Notification durable;
          shard_.AwaitDurable(*pushed, [&](const absl::Status&) { durable.Notify(); });
          ASSERT_TRUE(durable.WaitForNotificationWithTimeout(kTimeout));
        }
      });
    }
  }
  void StopPushing() {
    pushing_ = false;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void Follow(const Standby& standby) {
    journal_->Feed(standby.target());
    Await(v1::StandbyReport::STAGE_IN_STEP);
  }

  // Reports like heartbeats do, until the standby is in that stage.
  void Await(v1::StandbyReport::Stage stage) {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (true) {
      report_ = journal_->Report();
      journal_->OnHeartbeat(report_);
      if (report_.stage() == stage) return;
      ASSERT_LT(absl::Now(), deadline) << report_.DebugString() << log();
    }
  }
  std::string log() {
    absl::MutexLock lock(&mutex_);
    return log_;
  }

  // Compares the shards once all changes are durable.
  void ExpectEqual(Standby& standby) {
    absl::Notification durable;
    shard_.AwaitDurable([&](const absl::Status&) { durable.Notify(); });
    ASSERT_TRUE(durable.WaitForNotificationWithTimeout(kTimeout));
    const ShardState a = shard_.Capture([] {}), b = standby.shard().Capture([] {});
    ASSERT_EQ(a.slices.size(), b.slices.size());
    for (size_t i = 0; i < a.slices.size(); ++i) {
      ASSERT_EQ(a.slices[i].weights.version, b.slices[i].weights.version) << i;
      for (size_t k = 0; k < 2; ++k) {
        ASSERT_EQ(a.slices[i].weights.arrays[k].values(), b.slices[i].weights.arrays[k].values()) << i;
      }
    }
    ASSERT_EQ(a.windows.size(), b.windows.size());
    for (size_t i = 0; i < a.windows.size(); ++i) {
      EXPECT_EQ(a.windows[i].SerializeAsString(), b.windows[i].SerializeAsString());
    }
  }

  // Called before a channel to a standby is opened.
  std::function<void()> on_open_ = [] {};
  std::unique_ptr<StandbyJournal> journal_;
  // The first declaration opens the journal.
  ParameterShard shard_{
      {.open_journal = [this](const JobConfig&) -> absl::StatusOr<ShardJournal*> { return journal_.get(); }},
      Clock::Real()};
  v1::StandbyReport report_;
  std::atomic<bool> pushing_{true};
  std::vector<std::thread> threads_;
  absl::Mutex mutex_;
  std::string log_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(StandbyJournalTest, AStandbyThatJoinsWhileAllSlicesChangeBecomesEqual) {
  Declare(1, kTensors);
  StartPushing();
  Standby standby(7);
  Follow(standby);
  EXPECT_EQ(report_.bytes_total(), kTensors * 3 * 2 * sizeof(float));
  EXPECT_EQ(report_.bytes_done(), report_.bytes_total());
  StopPushing();
  ExpectEqual(standby);
  EXPECT_THAT(log(), HasSubstr("standby 0: in step after "));
}

TEST_F(StandbyJournalTest, TensorsThatAreDeclaredMeanwhileComeToo) {
  Declare(1, kTensors / 2);
  Standby standby(7);
  journal_->Feed(standby.target());
  Declare(kTensors / 2 + 1, kTensors / 2);
  StartPushing();
  // This tensor has more than one slice.
  Declare(kTensors + 1, 3, 2 << 20);
  Await(v1::StandbyReport::STAGE_IN_STEP);
  StopPushing();
  ExpectEqual(standby);
}

TEST_F(StandbyJournalTest, AStandbyThatJoinsWhileRowsChangeBecomesEqual) {
  Declare(1, 1);
  ASSERT_THAT(shard_.Declare(Job(v1::Durability::STANDBY), {}, {PartOf(0, 1)}), IsOk());
  ASSERT_THAT(PushRows(shard_, 20000, 1, 1), IsOk());
  StartPushingRows();
  Standby standby(7);
  Follow(standby);
  // Declared while a standby follows.
  OwnedTable late = PartOf(0, 1);
  late.spec.set_id(kTable + 1);
  late.spec.set_name("late");
  ASSERT_THAT(shard_.Declare(Job(v1::Durability::STANDBY), {}, {late}), IsOk());
  StopPushing();
  ExpectEqual(standby);
  const auto rows = RowsOf(shard_);
  EXPECT_EQ(RowsOf(standby.shard()), rows);
  EXPECT_GE(rows.size(), 20000u);
}

TEST_F(StandbyJournalTest, AStandbyThatJoinsWhileScaledRowsChangeBecomesEqual) {
  ASSERT_THAT(shard_.Declare(ScaledJob(v1::Durability::STANDBY), {}, {PartOf(0, 1)}), IsOk());
  ASSERT_THAT(PushRows(shard_, 20000, 1, 1), IsOk());
  StartPushingRows();
  Standby standby(7);
  Follow(standby);
  StopPushing();
  ExpectEqual(standby);
  EXPECT_EQ(RowsOf(standby.shard()), RowsOf(shard_));
}

TEST_F(StandbyJournalTest, ATableThatIsDeclaredMeanwhileComesToo) {
  Declare(1, kTensors);
  Standby standby(7);
  journal_->Feed(standby.target());
  ASSERT_THAT(shard_.Declare(Job(v1::Durability::STANDBY), {}, {PartOf(0, 1)}), IsOk());
  ASSERT_THAT(PushRows(shard_, 1000, 1, 1), IsOk());
  StartPushingRows();
  Await(v1::StandbyReport::STAGE_IN_STEP);
  StopPushing();
  ExpectEqual(standby);
  EXPECT_EQ(RowsOf(standby.shard()), RowsOf(shard_));
}

TEST_F(StandbyJournalTest, AShardWithoutSlicesHasAStandbyLikeOthers) {
  Declare(1, 0);
  Standby standby(7);
  Follow(standby);
  EXPECT_EQ(standby.shard().job_name(), "job");
  ASSERT_TRUE(shard_.Pause("job", 1, 1).ok());
  ASSERT_TRUE(Push(0, 1, {}).ok());
  ExpectEqual(standby);
}

TEST_F(StandbyJournalTest, AStandbyThatTakesAnothersPlaceIsNotReportedAsLost) {
  Declare(1, 10);
  Standby first(7), second(8);
  Follow(first);
  v1::StandbyReport early;
  absl::Notification opened;
  on_open_ = [&] {
    early = journal_->Report();
    opened.Notify();
  };
  // The first standby's stream is still open.
  journal_->Feed(second.target());
  ASSERT_TRUE(opened.WaitForNotificationWithTimeout(kTimeout));
  Await(v1::StandbyReport::STAGE_IN_STEP);
  EXPECT_NE(early.stage(), v1::StandbyReport::STAGE_LOST) << early.DebugString();
  EXPECT_EQ(report_.incarnation(), 8);
  ExpectEqual(second);
}

TEST_F(StandbyJournalTest, SaysWhyAStandbyWasLost) {
  Declare(1, 10);
  {
    Standby standby(7);
    Follow(standby);
  }
  const absl::Time deadline = absl::Now() + kTimeout;
  do {
    report_ = journal_->Report();
    ASSERT_LT(absl::Now(), deadline);
  } while (report_.stage() != v1::StandbyReport::STAGE_LOST);
  EXPECT_NE(report_.reason(), "");
  EXPECT_THAT(log(), HasSubstr("stopped following: " + report_.reason()));
}

}  // namespace
}  // namespace ballast
