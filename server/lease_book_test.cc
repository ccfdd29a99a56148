// SPDX-License-Identifier: Apache-2.0
#include "server/lease_book.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/job_length.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// Whether the ranges, sorted, cover [0, n) without overlap.
bool CoverOnce(Ranges ranges, uint64_t n) {
  std::sort(ranges.begin(), ranges.end());
  uint64_t next = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != next && begin != end) return false;
    next = std::max(next, end);
  }
  return next == n;
}

TEST(LeaseBookTest, LockStepCoversEachEpochOnceForAnyNumberOfWorkers) {
  for (uint32_t workers : {1, 2, 3, 5, 16}) {
    for (uint64_t examples : {1, 7, 100, 1000, 10007}) {
      LeaseBook book({examples, 2, workers, 10, true});
      std::vector<Ranges> ranges(2);
      std::vector<std::vector<uint32_t>> steps(workers);
      for (uint32_t rank = 0; rank < workers; ++rank) {
        while (auto lease = book.Acquire(rank)) {
          ranges[lease->epoch].push_back({lease->begin, lease->end});
          EXPECT_LE(lease->end - lease->begin, uint64_t{lease->steps} * 10);
          steps[rank].push_back(lease->steps);
          ASSERT_TRUE(book.Complete(rank, lease->id).ok());
        }
        EXPECT_EQ(steps[rank], steps[0]) << "all ranks take the same steps";
      }
      EXPECT_TRUE(CoverOnce(ranges[0], examples)) << workers << " workers, " << examples << " examples";
      EXPECT_TRUE(CoverOnce(ranges[1], examples));
      EXPECT_TRUE(book.Finished());
      uint64_t all = 0;
      for (uint32_t s : steps[0]) all += s;
      EXPECT_EQ(all, 2 * book.steps_per_epoch());
    }
  }
}

TEST(LeaseBookTest, LeasesAreWholePushesButAtAnEpochsEnd) {
  for (bool lock_step : {true, false}) {
    LeaseBook book({10007, 1, 2, 10, lock_step, /*batches_per_push=*/5});
    std::vector<uint32_t> odd;
    for (uint32_t turn = 0; turn < 1000; ++turn) {
      const auto lease = book.Acquire(turn % 2);
      if (!lease.has_value()) continue;
      EXPECT_LE(lease->steps, 20);
      if (lease->steps % 5 != 0) odd.push_back(lease->steps);
    }
    EXPECT_LE(odd.size(), lock_step ? 2 : 1) << "of the last round, or the last lease";
  }
}

// What workers compute schedules from, against the leases that there are.
TEST(LeaseBookTest, GivesAsManyPushesAsTheJobsLengthSays) {
  for (bool lock_step : {true, false}) {
    for (uint32_t workers : {1, 2, 3, 5}) {
      for (uint64_t examples : {1, 7, 100, 1000, 10007}) {
        for (uint32_t per_push : {1, 3, 16, 40}) {
          v1::Job job;
          job.mutable_training()->set_epochs(2);
          job.mutable_training()->set_batch_size(10);
          job.mutable_training()->set_accumulate_batches(per_push);
          if (!lock_step) job.mutable_policy()->mutable_async();
          if (lock_step) job.mutable_policy()->mutable_sync();
          LeaseBook book({examples, 2, workers, 10, lock_step, per_push});
          uint64_t of_first = 0, of_all = 0;
          for (uint32_t rank = 0; rank < workers; ++rank) {
            while (const auto lease = book.Acquire(rank)) {
              const uint64_t pushes = (lease->steps + per_push - 1) / per_push;
              of_first += rank == 0 ? pushes : 0;
              of_all += pushes;
            }
          }
          EXPECT_EQ(CountUpdates(job, examples, workers), lock_step ? of_first : of_all)
              << workers << " workers, " << examples << " examples, " << per_push << " batches a push";
        }
      }
    }
  }
}

TEST(LeaseBookTest, LockStepDoesNotDependOnWhoAsksFirst) {
  LeaseBook first({1000, 1, 2, 10, true}), second({1000, 1, 2, 10, true});
  const auto a = first.Acquire(0), b = first.Acquire(1);
  const auto c = second.Acquire(1), d = second.Acquire(0);
  EXPECT_EQ(a->begin, d->begin);
  EXPECT_EQ(b->begin, c->begin);
}

TEST(LeaseBookTest, FirstComeFirstServedCoversEachEpochOnce) {
  LeaseBook book({10007, 3, 3, 64, false});
  std::vector<Ranges> ranges(3);
  for (uint32_t turn = 0; auto lease = book.Acquire(turn % 2); ++turn) {
    ranges[lease->epoch].push_back({lease->begin, lease->end});
    ASSERT_TRUE(book.Complete(turn % 2, lease->id).ok());
  }
  for (const Ranges& epoch : ranges) EXPECT_TRUE(CoverOnce(epoch, 10007));
}

TEST(LeaseBookTest, GivesTheLeaseOfAWorkerThatIsGoneToAnother) {
  LeaseBook book({10, 1, 2, 10, false});
  const auto lost = book.Acquire(0);
  EXPECT_FALSE(book.Acquire(1).has_value());
  EXPECT_FALSE(book.Finished());
  EXPECT_EQ(book.Outstanding(), "worker 0 (epoch 1, examples 0 to 10)");
  book.Release(0);
  const auto again = book.Acquire(1);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->begin, lost->begin);
  EXPECT_NE(again->id, lost->id);
  EXPECT_TRUE(book.Complete(1, again->id).ok());
  EXPECT_TRUE(book.Finished());
}

TEST(LeaseBookTest, HandsALeaseOutAgainWhoseAnswerWasLost) {
  LeaseBook book({100, 1, 2, 10, true});
  const auto first = book.Acquire(0), second = book.Acquire(1);
  EXPECT_EQ(book.Unanswered(0, {})->id, first->id);
  EXPECT_FALSE(book.Unanswered(0, {first->id}).has_value());
  EXPECT_EQ(book.Unanswered(1, {first->id})->id, second->id);
  ASSERT_TRUE(book.Complete(0, first->id).ok());
  EXPECT_FALSE(book.Unanswered(0, {}).has_value());
}

TEST(LeaseBookTest, TakesTheSameReportTwiceButNotAStrangers) {
  LeaseBook book({10, 1, 2, 10, false});
  const auto lease = book.Acquire(0);
  EXPECT_EQ(book.Complete(1, lease->id).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(book.Complete(0, 99).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(book.Complete(0, lease->id).ok());
  EXPECT_TRUE(book.Complete(0, lease->id).ok());
}

}  // namespace
}  // namespace ballast
