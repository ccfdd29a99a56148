// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/lease_table.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "common/job/job_length.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// Returns whether the ranges, sorted, cover [0, n) without overlap.
bool CoverOnce(Ranges ranges, uint64_t n) {
  std::sort(ranges.begin(), ranges.end());
  uint64_t next = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != next && begin != end) return false;
    next = std::max(next, end);
  }
  return next == n;
}

TEST(LeaseTableTest, LockStepCoversEachEpochOnceForAnyNumberOfWorkers) {
  for (uint32_t workers : {1, 2, 3, 5, 16}) {
    for (uint64_t examples : {1, 7, 100, 1000, 10007}) {
      LeaseTable book({examples, 2, workers, 10, true});
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

TEST(LeaseTableTest, LeasesAreWholePushesButAtAnEpochsEnd) {
  for (bool lock_step : {true, false}) {
    LeaseTable book({10007, 1, 2, 10, lock_step, /*batches_per_push=*/5});
    std::vector<uint32_t> odd;
    for (uint32_t turn = 0; turn < 1000; ++turn) {
      const auto lease = book.Acquire(turn % 2);
      if (!lease.has_value()) continue;
      EXPECT_LE(lease->steps, 20);
      if (lease->steps % 5 != 0) odd.push_back(lease->steps);
    }
    EXPECT_LE(odd.size(), lock_step ? 2 : 1) << "only the last round or the last lease may differ";
  }
}

TEST(LeaseTableTest, AnEpochIsDoneWhenTheLastOfItsLeasesIs) {
  for (bool lock_step : {true, false}) {
    LeaseTable book({40, 2, 2, 10, lock_step});
    const auto first = book.Acquire(0);
    ASSERT_TRUE(book.Acquire(1).has_value());
    std::optional<DataLease> next = book.Acquire(0);
    // Without lock step a rank takes the epoch's last ranges.
    while (next->epoch == 0) {
      ASSERT_TRUE(book.Complete(0, next->id).ok());
      next = book.Acquire(0);
    }
    ASSERT_TRUE(book.Complete(0, first->id).ok());
    EXPECT_EQ(book.epochs_done(), 0) << "worker 1 still holds a lease of it";
    book.Release(1);
    EXPECT_EQ(book.epochs_done(), 0) << "nobody has done the lease that it held";
    const auto taken_over = book.Acquire(0);
    EXPECT_EQ(taken_over->epoch, 0);
    ASSERT_TRUE(book.Complete(0, taken_over->id).ok());
    EXPECT_EQ(book.epochs_done(), 1);
  }
}

// The positions of a lease's batches in the job, as workers send them with their pushes.
std::vector<double> PositionsOf(const DataLease& lease) {
  std::vector<double> positions;
  for (uint32_t k = 0; k < lease.steps; ++k) {
    positions.push_back(lease.share_begin + (lease.share_end - lease.share_begin) * k / lease.steps);
  }
  return positions;
}

TEST(LeaseTableTest, InLockStepAllRanksAreAtTheSamePlaceWithTheSameStep) {
  for (uint64_t examples : {7, 100, 10007}) {
    LeaseTable book({examples, 3, 4, 10, true});
    std::vector<std::vector<double>> positions(4);
    for (uint32_t rank : {2, 0, 3, 1}) {
      while (auto lease = book.Acquire(rank)) {
        const std::vector<double> of_lease = PositionsOf(*lease);
        positions[rank].insert(positions[rank].end(), of_lease.begin(), of_lease.end());
        ASSERT_TRUE(book.Complete(rank, lease->id).ok());
      }
      EXPECT_EQ(positions[rank], positions[2]);
    }
    EXPECT_EQ(positions[0].front(), 0);
    EXPECT_TRUE(std::is_sorted(positions[0].begin(), positions[0].end()));
    // Epochs are equally long.
    const size_t steps = positions[0].size() / 3;
    EXPECT_DOUBLE_EQ(positions[0][steps], 1 / 3.0);
    EXPECT_DOUBLE_EQ(positions[0][2 * steps], 2 / 3.0);
    EXPECT_LT(positions[0].back(), 1);
  }
}

// One of two workers is absent for half of the job: the other makes more updates than planned, and they still spread
// over the whole schedule.
TEST(LeaseTableTest, WithAWorkerAwayAScheduleStillEndsWithTheJob) {
  v1::Job job;
  job.mutable_training()->set_epochs(4);
  job.mutable_training()->set_batch_size(10);
  job.mutable_policy()->mutable_sync();
  constexpr uint64_t kExamples = 9600;
  const uint64_t planned = CountUpdates(job, kExamples, 2);
  LeaseTable book({kExamples, 4, 2, 10, true});
  uint64_t updates = 0, late = 0, examples = 0;
  double position = 0, furthest_off = 0;
  while (!book.Finished()) {
    if (examples == kExamples) book.Release(1);
    if (examples == 3 * kExamples) book.Return(1);
    std::vector<std::pair<uint32_t, DataLease>> leases;
    for (uint32_t rank : {0, 1}) {
      const bool away = rank == 1 && examples >= kExamples && examples < 3 * kExamples;
      if (auto lease = away ? std::nullopt : book.Acquire(rank)) leases.push_back({rank, *lease});
    }
    for (double at : PositionsOf(leases.at(0).second)) {
      furthest_off = std::max(furthest_off, std::abs(at - examples / (4.0 * kExamples)));
      position = std::max(position, at);
      ++updates;
      late += position > 0.99;
    }
    for (const auto& [rank, lease] : leases) {
      examples += lease.end - lease.begin;
      ASSERT_TRUE(book.Complete(rank, lease.id).ok());
    }
  }
  EXPECT_EQ(planned, 4 * 480);
  EXPECT_EQ(updates, planned + 2 * 480);
  EXPECT_GT(position, 0.99);
  // When updates were counted instead, those of two epochs came at the end with a rate of 0.
  EXPECT_LT(late, 40);
  EXPECT_LE(furthest_off, 2 * 320 / (4.0 * kExamples)) << "off by at most a round";
}

TEST(LeaseTableTest, OutOfLockStepALeaseSaysWhatWasDoneAndWhatWasHandedOut) {
  LeaseTable book({3200, 2, 2, 10, false});
  const DataLease first = *book.Acquire(0);
  EXPECT_EQ(first.share_begin, 0);
  EXPECT_DOUBLE_EQ(first.share_end, 160 / 6400.0);
  const DataLease second = *book.Acquire(1);
  EXPECT_EQ(second.share_begin, 0);
  EXPECT_DOUBLE_EQ(second.share_end, 320 / 6400.0);
  ASSERT_TRUE(book.Complete(0, first.id).ok());
  const DataLease third = *book.Acquire(0);
  EXPECT_DOUBLE_EQ(third.share_begin, 160 / 6400.0);
  EXPECT_DOUBLE_EQ(third.share_end, 480 / 6400.0);
  // The lost worker's lease is handed out again and is not done.
  book.Release(1);
  const DataLease again = *book.Acquire(0);
  EXPECT_EQ(again.begin, second.begin);
  // The worker begins it after the third.
  EXPECT_DOUBLE_EQ(again.share_begin, 320 / 6400.0);
  EXPECT_DOUBLE_EQ(again.share_end, 480 / 6400.0);
  ASSERT_TRUE(book.Complete(0, third.id).ok());
  ASSERT_TRUE(book.Complete(0, again.id).ok());
  double end = 0;
  while (auto lease = book.Acquire(0)) {
    end = lease->share_end;
    ASSERT_TRUE(book.Complete(0, lease->id).ok());
  }
  EXPECT_DOUBLE_EQ(end, 1);
}

TEST(LeaseTableTest, ARestoredLeaseIsAtTheSamePlace) {
  const LeaseTable::Options options{10007, 3, 2, 10, true};
  LeaseTable book(options), other(options);
  ASSERT_TRUE(book.Complete(0, book.Acquire(0)->id).ok());
  const DataLease lease = *book.Acquire(0);
  EXPECT_GT(lease.share_begin, 0);
  ASSERT_TRUE(other.Restore(book.Export()).ok());
  const std::optional<DataLease> again = other.Unanswered(0, {});
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->share_begin, lease.share_begin);
  EXPECT_EQ(again->share_end, lease.share_end);
}

// Compares the numbers from which workers compute schedules with the actual leases.
TEST(LeaseTableTest, GivesAsManyPushesAsTheJobsLengthSays) {
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
          LeaseTable book({examples, 2, workers, 10, lock_step, per_push});
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

TEST(LeaseTableTest, LockStepDoesNotDependOnWhoAsksFirst) {
  LeaseTable first({1000, 1, 2, 10, true}), second({1000, 1, 2, 10, true});
  const auto a = first.Acquire(0), b = first.Acquire(1);
  const auto c = second.Acquire(1), d = second.Acquire(0);
  EXPECT_EQ(a->begin, d->begin);
  EXPECT_EQ(b->begin, c->begin);
}

TEST(LeaseTableTest, FirstComeFirstServedCoversEachEpochOnce) {
  LeaseTable book({10007, 3, 3, 64, false});
  std::vector<Ranges> ranges(3);
  for (uint32_t turn = 0; auto lease = book.Acquire(turn % 2); ++turn) {
    ranges[lease->epoch].push_back({lease->begin, lease->end});
    ASSERT_TRUE(book.Complete(turn % 2, lease->id).ok());
  }
  for (const Ranges& epoch : ranges) EXPECT_TRUE(CoverOnce(epoch, 10007));
}

TEST(LeaseTableTest, GivesTheLeaseOfAWorkerThatIsGoneToAnother) {
  LeaseTable book({10, 1, 2, 10, false});
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

TEST(LeaseTableTest, HandsALeaseOutAgainWhoseAnswerWasLost) {
  LeaseTable book({100, 1, 2, 10, true});
  const auto first = book.Acquire(0), second = book.Acquire(1);
  EXPECT_EQ(book.Unanswered(0, {})->id, first->id);
  EXPECT_FALSE(book.Unanswered(0, {first->id}).has_value());
  EXPECT_EQ(book.Unanswered(1, {first->id})->id, second->id);
  ASSERT_TRUE(book.Complete(0, first->id).ok());
  EXPECT_FALSE(book.Unanswered(0, {}).has_value());
}

TEST(LeaseTableTest, LockStepTakesAnAbsentRanksRangesRoundByRoundUntilItReturns) {
  // Two rounds of 160 examples for each of 2 ranks.
  LeaseTable book({640, 1, 2, 10, true});
  const auto begin = [&](uint32_t rank) {
    const auto lease = book.Acquire(rank);
    return lease.has_value() ? static_cast<int64_t>(lease->begin) : -1;
  };
  EXPECT_EQ(begin(0), 0);
  EXPECT_EQ(begin(1), 160);
  book.Release(1);
  EXPECT_EQ(begin(0), 160) << "before its own range of the next round";
  EXPECT_EQ(book.repeated_examples(), 160);
  EXPECT_EQ(begin(0), 320);
  book.Return(1);
  EXPECT_EQ(begin(0), -1);
  EXPECT_EQ(begin(1), 480);
}

TEST(LeaseTableTest, ALeaseFromAfterTheStateWasSavedMayBeReportedDoneAndIsNobodyElses) {
  for (bool lock_step : {true, false}) {
    const LeaseTable::Options options{640, 1, 2, 10, lock_step};
    LeaseTable first(options), second(options);
    const internal::v1::LeaseTableState saved = first.Export();
    const auto forgotten = first.Acquire(0);
    ASSERT_TRUE(second.Restore(saved).ok());
    const auto again = second.Acquire(0);
    EXPECT_EQ(again->begin, forgotten->begin) << "its data is trained on again";
    EXPECT_NE(again->id, forgotten->id);
    EXPECT_TRUE(second.Complete(0, forgotten->id).ok());
    EXPECT_TRUE(second.Complete(0, again->id).ok());
  }
}

TEST(LeaseTableTest, GoesOnFromWhereAnotherWas) {
  for (bool lock_step : {true, false}) {
    const LeaseTable::Options options{10007, 2, 3, 10, lock_step};
    LeaseTable first(options);
    for (uint32_t turn = 0; turn < 20; ++turn) {
      const auto lease = first.Acquire(turn % 3);
      if (turn % 4 != 0) {
        ASSERT_TRUE(first.Complete(turn % 3, lease->id).ok());
      }
    }
    first.Release(2);
    LeaseTable second(options);
    ASSERT_TRUE(second.Restore(first.Export()).ok());
    EXPECT_EQ(second.Outstanding(), first.Outstanding());
    for (uint32_t turn = 0; turn < 300; ++turn) {
      const auto a = first.Acquire(turn % 2), b = second.Acquire(turn % 2);
      ASSERT_EQ(a.has_value(), b.has_value());
      if (!a.has_value()) continue;
      EXPECT_GT(b->id, a->id) << "later ids of the first table differ from the second's";
      EXPECT_EQ(a->begin, b->begin);
      EXPECT_EQ(a->steps, b->steps);
    }
    EXPECT_EQ(second.repeated_examples(), first.repeated_examples());
  }
}

TEST(LeaseTableTest, RefusesWhatNoBookOfItsKindHasSaved) {
  LeaseTable book({100, 1, 2, 10, true}), other({200, 1, 2, 10, true}), larger({100, 1, 3, 10, true});
  ASSERT_TRUE(other.Acquire(1).has_value());
  EXPECT_EQ(book.Restore(other.Export()).message(),
            "saved lease 1: got epoch 0, examples 100 to 200, want one of 1 epochs of 100 examples");
  EXPECT_EQ(book.Restore(larger.Export()).message(), "saved leases: got 3 ranks, want 2");
  EXPECT_TRUE(book.Acquire(0).has_value()) << "the table is unchanged";
}

// Workers take leases, finish, die and return at random; the table itself is restarted, too.
TEST(LeaseTableTest, EveryExampleIsCoveredAndRepeatsAreCountedWhateverBefallsWorkers) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random); };
    const uint32_t workers = 1 + below(5);
    const LeaseTable::Options options{1 + below(3000), 1 + below(3),  workers,
                                      1 + below(20),   below(2) == 0, 1 + below(3)};
    auto book = std::make_unique<LeaseTable>(options);
    // By epoch and position: how often it was handed out and reported done.
    std::vector<std::vector<uint32_t>> given(options.epochs, std::vector<uint32_t>(options.examples));
    std::vector<std::vector<uint32_t>> done = given;
    std::vector<std::vector<DataLease>> held(workers);
    std::vector<bool> here(workers, true);
    for (int turn = 0; !book->Finished(); ++turn) {
      ASSERT_LT(turn, 200000) << "seed " << seed;
      const uint32_t rank = below(workers);
      if (!here[rank]) {
        // Rank 0 always returns, so that the job ends.
        if (rank == 0 || below(8) == 0) {
          here[rank] = true;
          book->Return(rank);
        }
      } else if (below(20) == 0) {
        here[rank] = false;
        held[rank].clear();
        book->Release(rank);
      } else if (!held[rank].empty() && below(2) == 0) {
        const DataLease lease = held[rank].back();
        held[rank].pop_back();
        ASSERT_TRUE(book->Complete(rank, lease.id).ok());
        for (uint64_t i = lease.begin; i < lease.end; ++i) ++done[lease.epoch][i];
      } else if (const auto lease = book->Acquire(rank); lease.has_value()) {
        EXPECT_LE(lease->end - lease->begin, uint64_t{lease->steps} * options.batch_size);
        held[rank].push_back(*lease);
        for (uint64_t i = lease->begin; i < lease->end; ++i) ++given[lease->epoch][i];
      }
      if (below(50) == 0) {
        auto next = std::make_unique<LeaseTable>(options);
        ASSERT_TRUE(next->Restore(book->Export()).ok());
        book = std::move(next);
      }
    }
    uint64_t repeated = 0;
    for (uint32_t epoch = 0; epoch < options.epochs; ++epoch) {
      for (uint64_t i = 0; i < options.examples; ++i) {
        ASSERT_EQ(done[epoch][i], 1) << "seed " << seed << ", epoch " << epoch << ", position " << i;
        repeated += given[epoch][i] - 1;
      }
    }
    EXPECT_EQ(book->repeated_examples(), repeated) << "seed " << seed;
  }
}

TEST(LeaseTableTest, TakesTheSameReportTwiceButNotAStrangers) {
  LeaseTable book({10, 1, 2, 10, false});
  const auto lease = book.Acquire(0);
  EXPECT_EQ(book.Complete(1, lease->id).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(book.Complete(0, 99).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(book.Complete(0, lease->id).ok());
  EXPECT_TRUE(book.Complete(0, lease->id).ok());
}

// Ranks take and end leases at random until nothing is held.
void BringToRest(LeaseTable& book, uint32_t workers, std::mt19937& random) {
  std::vector<std::pair<uint32_t, uint64_t>> held;
  book.Hold();
  for (int turn = 0; turn < 1000 && !book.AtRest(); ++turn) {
    const uint32_t rank = random() % workers;
    if (auto lease = book.Acquire(rank)) held.emplace_back(rank, lease->id);
    if (held.empty()) continue;
    ASSERT_TRUE(book.Complete(held.back().first, held.back().second).ok());
    held.pop_back();
  }
}

TEST(LeaseTableTest, HeldBackItComesToRestAndAnotherGoesOnFromThere) {
  std::mt19937 random(7);
  for (bool lock_step : {true, false}) {
    for (uint32_t workers : {1, 2, 3}) {
      for (uint32_t later_workers : {1, 2, 4}) {
        LeaseTable book({1000, 3, workers, 10, lock_step});
        std::vector<Ranges> ranges(3);
        std::vector<std::pair<uint32_t, DataLease>> held;
        const auto take = [&](LeaseTable& from, uint32_t rank) {
          auto lease = from.Acquire(rank);
          if (!lease.has_value()) return false;
          ranges[lease->epoch].push_back({lease->begin, lease->end});
          held.emplace_back(rank, *lease);
          return true;
        };
        const auto end_all = [&](LeaseTable& from) {
          for (const auto& [rank, lease] : held) ASSERT_TRUE(from.Complete(rank, lease.id).ok());
          held.clear();
        };
        // Some are rounds ahead of others.
        for (int turn = 0; turn < 7; ++turn) take(book, random() % workers);
        book.Hold();
        EXPECT_FALSE(book.AtRest()) << "some data is held";
        for (uint32_t rank = 0; rank < workers; ++rank) {
          while (take(book, rank)) {
          }
        }
        end_all(book);
        ASSERT_TRUE(book.AtRest());
        EXPECT_FALSE(book.Acquire(0).has_value());

        LeaseTable later({1000, 3, later_workers, 10, lock_step});
        ASSERT_TRUE(later.Resume(book.Export()).ok());
        for (bool more = true; more;) {
          more = false;
          for (uint32_t rank = 0; rank < later_workers; ++rank) more = take(later, rank) || more;
        }
        end_all(later);
        EXPECT_TRUE(later.Finished());
        for (const Ranges& epoch : ranges) EXPECT_TRUE(CoverOnce(epoch, 1000)) << workers << " to " << later_workers;
      }
    }
  }
}

TEST(LeaseTableTest, ALostWorkersDataComesToRestWithTheOthers) {
  std::mt19937 random(9);
  LeaseTable book({1000, 1, 3, 10, true});
  ASSERT_TRUE(book.Acquire(0).has_value());
  ASSERT_TRUE(book.Acquire(2).has_value());
  book.Release(0);
  book.Release(2);
  BringToRest(book, 2, random);
  EXPECT_TRUE(book.AtRest());
  book.Release();
  EXPECT_TRUE(book.Acquire(1).has_value());
}

TEST(LeaseTableTest, ResumesOnlyWhatWasAtRest) {
  LeaseTable book({1000, 1, 2, 10, true});
  ASSERT_TRUE(book.Acquire(0).has_value());
  EXPECT_EQ(LeaseTable({1000, 1, 2, 10, true}).Resume(book.Export()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LeaseTable({1000, 1, 2, 10, true}).Resume({}).code(), absl::StatusCode::kInvalidArgument);
  internal::v1::LeaseTableState far = LeaseTable({1000, 9, 2, 10, true}).Export();
  far.mutable_by_rank(0)->set_epoch(8);
  EXPECT_EQ(LeaseTable({1000, 1, 2, 10, true}).Resume(far).code(), absl::StatusCode::kInvalidArgument);
}

TEST(LeaseTableTest, AnEpochBeginsOnlyOnceItIsOpen) {
  LeaseTable book({40, 2, 2, 10, true});
  book.Open(1);
  ASSERT_EQ(book.Acquire(0)->id, 1);
  ASSERT_EQ(book.Acquire(1)->id, 2);
  EXPECT_FALSE(book.Acquire(0).has_value());
  EXPECT_EQ(book.AwaitsOpen(), 0) << "data is held";
  ASSERT_TRUE(book.Complete(0, 1).ok());
  book.Release(1);
  EXPECT_EQ(book.AwaitsOpen(), 0) << "data was returned";
  ASSERT_EQ(book.Acquire(0)->id, 3);
  ASSERT_TRUE(book.Complete(0, 3).ok());
  EXPECT_EQ(book.AwaitsOpen(), 1);
  book.Open(9);
  EXPECT_EQ(book.AwaitsOpen(), 0);
  EXPECT_EQ(book.Acquire(0)->epoch, 1);
}

TEST(LeaseTableTest, AfterItsEarlyEndOnlyDataThatWasBegunIsHandedOut) {
  for (bool lock_step : {true, false}) {
    LeaseTable book({1000, 9, 2, 10, lock_step});
    ASSERT_TRUE(book.Acquire(0).has_value());
    book.End();
    EXPECT_EQ(book.Acquire(1).has_value(), lock_step) << "the other part of the round";
    EXPECT_FALSE(book.Finished());
    for (uint32_t rank : {0u, 1u}) ASSERT_TRUE(book.Complete(rank, lock_step ? rank + 1 : 1).ok());
    book.Hold();
    book.Release();
    EXPECT_FALSE(book.Acquire(0).has_value()) << "a checkpoint changes nothing";
    EXPECT_TRUE(book.Finished());
    EXPECT_EQ(book.EpochsBegun(), 1);
  }
}
}  // namespace
}  // namespace ballast
