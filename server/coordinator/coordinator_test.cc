// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/coordinator.h"

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/coordinator/testing/job_fixture.h"

namespace ballast {
namespace {

class CoordinatorTest : public testing::Test {
 protected:
  absl::StatusOr<Membership::Id> JoinWorker(uint32_t rank) { return coordinator_.Join(WorkerOf(rank)); }
  void Gather() { Gather(coordinator_, SyncJob()); }
  void Gather(Coordinator& coordinator, const v1::Job& job) {
    server_ = *coordinator.Join(ServerAt(0));
    worker0_ = *coordinator.Join(WorkerOf(0, job));
    worker1_ = *coordinator.Join(WorkerOf(1, job));
  }

  // Returns the id of the next lease.
  uint64_t Acquire(const Membership::Id& id) {
    uint64_t lease = 0;
    coordinator_.AcquireLease(id, {}, absl::Seconds(1), [&](auto grant) { lease = grant->lease->id; });
    return lease;
  }

  // Time passes, and these members send heartbeats.
  void Silence(const std::vector<Membership::Id>& heard, absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Seconds(1)) {
      clock_.Advance(absl::Seconds(1));
      for (const Membership::Id& id : heard) ASSERT_TRUE(coordinator_.Heartbeat(id).ok());
    }
  }

  ManualClock clock_;
  Coordinator coordinator_{{{.servers = 1, .workers = 2}}, &clock_};
  Membership::Id server_, worker0_, worker1_;
};

TEST_F(CoordinatorTest, RunsOnceAllHaveJoinedAndFinishesOnceAllLeasesAreDone) {
  server_ = *coordinator_.Join(ServerAt(0));
  EXPECT_EQ(coordinator_.progress().reason(), "waiting for worker 0, worker 1 to join");
  worker0_ = *JoinWorker(0);
  worker1_ = *JoinWorker(1);
  EXPECT_EQ(coordinator_.progress().state(), v1::JOB_STATE_RUNNING);
  std::vector<DataLease> leases;
  for (const Membership::Id& id : {worker0_, worker1_}) {
    coordinator_.AcquireLease(id, {}, absl::Seconds(1), [&](auto grant) { leases.push_back(*grant->lease); });
  }
  ASSERT_EQ(leases.size(), 2);
  ASSERT_TRUE(coordinator_.CompleteLease(worker0_, leases[0].id).ok());
  bool finished = false;
  coordinator_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { finished = grant->finished; });
  EXPECT_FALSE(finished);
  ASSERT_TRUE(coordinator_.CompleteLease(worker1_, leases[1].id).ok());
  EXPECT_TRUE(finished);
  EXPECT_EQ(coordinator_.Heartbeat(server_)->state, v1::JOB_STATE_FINISHED);
}

TEST_F(CoordinatorTest, LeaseWaitsUntilAllHaveJoined) {
  ASSERT_TRUE(coordinator_.Join(ServerAt(0)).ok());
  worker0_ = *JoinWorker(0);
  bool granted = false;
  coordinator_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { granted = grant->lease.has_value(); });
  EXPECT_FALSE(granted);
  ASSERT_TRUE(JoinWorker(1).ok());
  EXPECT_TRUE(granted);
}

TEST_F(CoordinatorTest, TheOthersGoOnWithoutASilentWorkerAndTakeItsData) {
  Gather();
  EXPECT_EQ(Acquire(worker1_), 1);
  EXPECT_EQ(Acquire(worker0_), 2);
  std::optional<DataLease> taken_over;
  coordinator_.AcquireLease(worker0_, {2}, absl::Hours(1), [&](auto grant) { taken_over = grant->lease; });
  Silence({server_, worker0_}, absl::Seconds(3));
  const auto reply = coordinator_.Heartbeat(server_);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->state, v1::JOB_STATE_RUNNING);
  ASSERT_EQ(reply->absent.size(), 1) << "so that no server waits for it";
  EXPECT_EQ(reply->absent[0].rank, 1);
  EXPECT_EQ(reply->absent[0].incarnation, 1);
  ASSERT_TRUE(taken_over.has_value()) << "a waiting call gets the lost worker's lease";
  EXPECT_EQ(taken_over->begin, 10);
  EXPECT_EQ(taken_over->end, 20);
  EXPECT_EQ(coordinator_.progress().examples_repeated(), 10);
  EXPECT_EQ(coordinator_.progress().workers_lost(), 1);
  EXPECT_EQ(coordinator_.progress().notices(0),
            "worker 1 (worker process) sent no heartbeat for 3s; the others continue");
  EXPECT_EQ(coordinator_.Describe().members(2).state(), "lost");
  EXPECT_EQ(coordinator_.Describe().members(2).reason(), "sent no heartbeat for 3s");
  EXPECT_EQ(coordinator_.Heartbeat(worker1_).status().code(), absl::StatusCode::kFailedPrecondition);
}

class SavedCoordinatorTest : public CoordinatorTest {
 protected:
  Coordinator::Options Options() { return {.job = {.servers = 1, .workers = 2}, .journal = &journal_}; }

  // Server 0 dies and is started again.
  void Restart() {
    internal::v1::CoordinatorState state;
    ASSERT_TRUE(state.ParseFromString(journal_.saved));
    restarted_ = std::make_unique<Coordinator>(Options(), &clock_);
    ASSERT_TRUE(restarted_->Restore(state).ok());
  }

  const v1::Job job_ = SyncJob(v1::Durability::WAL);
  MemoryJournal journal_;
  Coordinator first_{Options(), &clock_};
  std::unique_ptr<Coordinator> restarted_;
};

TEST_F(SavedCoordinatorTest, AfterARestartOfServer0MembersAndLeasesGoOn) {
  Gather(first_, job_);
  ASSERT_TRUE(first_.PlaceTensors("job", {SgdSpec(0, "w", 3)}, {SgdTable(1, "ids", 16)}).ok());
  uint64_t held = 0;
  first_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { held = grant->lease->id; });
  v1::WorkerProgress progress;
  progress.set_step(1);
  progress.mutable_work()->set_examples(10);
  ASSERT_TRUE(first_.ReportProgress(worker0_, progress, nullptr).ok());
  Restart();
  EXPECT_TRUE(restarted_->Heartbeat(worker0_).ok());
  EXPECT_TRUE(restarted_->Heartbeat(worker1_).ok());
  EXPECT_EQ(restarted_->shard_map().tensors().size(), 1);
  EXPECT_EQ(restarted_->shard_map().tables().size(), 1);
  EXPECT_EQ(restarted_->ReportProgress(worker0_, progress, nullptr)->examples(), 10) << "a retry still counts once";
  DataLease other;
  restarted_->AcquireLease(worker1_, {}, absl::Seconds(1), [&](auto grant) { other = *grant->lease; });
  EXPECT_NE(other.id, held) << "a lease is not granted again while its holder lives";
  EXPECT_EQ(other.begin, 10);
  v1::ReportProgressRequest::CompletedLease completed;
  completed.set_lease_id(held);
  EXPECT_TRUE(restarted_->ReportProgress(worker0_, progress, nullptr, &completed).ok());
  EXPECT_EQ(restarted_->ReportProgress(worker0_, progress, nullptr, &completed)->examples(), 10) << "so does this one";
  EXPECT_EQ(restarted_->progress().state(), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(restarted_->CompleteLease(worker1_, other.id).ok());
  EXPECT_EQ(restarted_->progress().state(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(restarted_->Join(ServerAt(0, "127.0.0.1:1", "its successor"))->incarnation, 2);
}

TEST_F(SavedCoordinatorTest, AfterARestartWhoDoesNotReturnIsGivenUpInItsTime) {
  Gather(first_, job_);
  clock_.Advance(absl::Minutes(10));
  Restart();
  EXPECT_EQ(restarted_->Join(ServerAt(0, "127.0.0.1:1", "its successor"))->incarnation, 2);
  EXPECT_TRUE(restarted_->Heartbeat(worker0_)->absent.empty());
  for (int second = 1; second < 10; ++second) {
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(restarted_->Heartbeat(worker0_)->absent.empty()) << "it may still be looking for the coordinator";
  }
  clock_.Advance(absl::Seconds(1));
  ASSERT_EQ(restarted_->Heartbeat(worker0_)->absent.size(), 1);
  EXPECT_EQ(restarted_->Heartbeat(worker0_)->absent[0].rank, 1u);
}

TEST_F(SavedCoordinatorTest, NothingIsAnsweredThatCouldNotBeSaved) {
  server_ = *first_.Join(ServerAt(0));
  worker0_ = *first_.Join(WorkerOf(0, job_, 20, "first"));
  journal_.full = true;
  EXPECT_TRUE(first_.Join(WorkerOf(1, job_, 20, "second")).ok());
  absl::Status refused;
  first_.AwaitSaved([&](const absl::Status& saved) { refused = saved; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const auto reply = first_.Heartbeat(server_);
  ASSERT_TRUE(reply.ok());
  first_.AwaitSaved(reply->change, [&](const absl::Status& saved) { refused = saved; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << "the response would say that the job runs";
  refused = absl::OkStatus();
  first_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { refused = grant.status(); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  journal_.full = false;
  uint64_t id = 0;
  first_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { id = grant->lease->id; });
  EXPECT_EQ(id, 1) << "the same lease again";
}

TEST_F(SavedCoordinatorTest, AJobThatOutlivesNothingIsNotSaved) {
  ASSERT_TRUE(first_.Join(WorkerOf(0, SyncJob(), 20, "first")).ok());
  EXPECT_EQ(journal_.saves, 0);
}

TEST_F(CoordinatorTest, LeaseWaitEndsSayingWhomItWaitedFor) {
  Gather();
  coordinator_.AcquireLease(worker0_, {}, absl::Seconds(1), [](auto grant) { ASSERT_EQ(grant->lease->id, 1); });
  std::promise<std::string> waiting_for;
  coordinator_.AcquireLease(worker0_, {1}, absl::ZeroDuration(),
                            [&](auto grant) { waiting_for.set_value(grant->waiting_for); });
  std::future<std::string> ended = waiting_for.get_future();
  ASSERT_EQ(ended.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(ended.get(), "worker 0 (epoch 1, examples 0 to 10)");
}

TEST_F(CoordinatorTest, LaterCallOfAWorkerWaitsInPlaceOfTheOneBefore) {
  Gather();
  ASSERT_EQ(Acquire(worker0_), 1);
  absl::Status first, second;
  coordinator_.AcquireLease(worker0_, {1}, absl::Hours(1), [&](auto grant) { first = grant.status(); });
  const WaitList::Ticket ticket =
      coordinator_.AcquireLease(worker0_, {1}, absl::Hours(1), [&](auto grant) { second = grant.status(); });
  EXPECT_EQ(first, absl::CancelledError("replaced by a later call of worker 0"));
  EXPECT_EQ(coordinator_.waiting(), 1);
  coordinator_.CancelWait(ticket);
  EXPECT_TRUE(absl::IsCancelled(second)) << second;
  EXPECT_EQ(coordinator_.waiting(), 0);
}

TEST_F(CoordinatorTest, WorkerThatWaitsForALeaseIsLostAllTheSameWhenItIsSilent) {
  Gather();
  ASSERT_EQ(Acquire(worker0_), 1);
  ASSERT_EQ(Acquire(worker1_), 2);
  absl::Status ended;
  coordinator_.AcquireLease(worker1_, {2}, absl::Hours(1), [&](auto grant) { ended = grant.status(); });
  Silence({server_, worker0_}, absl::Seconds(2));
  // All waiting calls check again.
  ASSERT_TRUE(coordinator_.CompleteLease(worker0_, 1).ok());
  Silence({server_, worker0_}, absl::Seconds(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(ended)) << ended;
  EXPECT_EQ(coordinator_.waiting(), 0);
}

TEST_F(CoordinatorTest, AProcessThatEndsDoesNotWaitForItsCallers) {
  Gather();
  ASSERT_EQ(Acquire(worker0_), 1);
  ASSERT_EQ(Acquire(worker1_), 2);
  absl::Status lease, map;
  coordinator_.AcquireLease(worker1_, {2}, absl::Hours(1), [&](auto grant) { lease = grant.status(); });
  const uint64_t epoch = coordinator_.shard_map().epoch();
  coordinator_.AwaitShardMap(epoch + 1, absl::Hours(1), "peer", [&](auto newer) { map = newer.status(); });
  coordinator_.EndWaits(absl::UnavailableError("shutting down"));
  EXPECT_TRUE(absl::IsUnavailable(lease)) << lease;
  EXPECT_TRUE(absl::IsUnavailable(map)) << map;
  EXPECT_EQ(coordinator_.waiting(), 0);
  // A caller that tries again before the port is closed would keep it open.
  absl::Status again;
  absl::Notification ended;
  coordinator_.AcquireLease(worker1_, {2}, absl::Hours(1), [&](auto grant) {
    again = grant.status();
    ended.Notify();
  });
  ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_TRUE(absl::IsUnavailable(again)) << again;
}

TEST_F(CoordinatorTest, CallsThatWaitForANewerMapAreBoundedForEachPeer) {
  Gather();
  const uint64_t epoch = coordinator_.shard_map().epoch();
  int refused = 0;
  std::vector<WaitList::Ticket> tickets;
  for (int i = 0; i < 100; ++i) {
    tickets.push_back(coordinator_.AwaitShardMap(epoch + 1, absl::Hours(1), "greedy", [&](auto map) {
      refused += absl::IsResourceExhausted(map.status()) ? 1 : 0;
    }));
  }
  EXPECT_EQ(refused, 92);
  EXPECT_EQ(coordinator_.waiting(), 8);
  EXPECT_NE(coordinator_.AwaitShardMap(epoch + 1, absl::Hours(1), "another", [](auto) {}), WaitList::kNoTicket);
  for (WaitList::Ticket ticket : tickets) coordinator_.CancelWait(ticket);
  EXPECT_EQ(coordinator_.waiting(), 1);
  EXPECT_NE(coordinator_.AwaitShardMap(epoch + 1, absl::Hours(1), "greedy", [](auto) {}), WaitList::kNoTicket);
}

}  // namespace
}  // namespace ballast
