// SPDX-License-Identifier: Apache-2.0
#include "worker/data/batch_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

// Example i has the features i and -i and the label 10 i.
class CountingDataset : public Dataset {
 public:
  explicit CountingDataset(uint64_t size) : size_(size) {}

  uint64_t size() const override { return size_; }
  uint64_t features() const override { return 2; }
  std::vector<PlacedLabel> ExtremeLabels() const override { return {}; }
  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels,
                    IdBags* ids) const override {
    if (absl::Status status = CheckRead(*this, indices, features, labels); !status.ok()) return status;
    ClearBags(ids);
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == bad_example) return absl::DataLossError("example is bad");
      features[2 * i] = indices[i];
      features[2 * i + 1] = -1.0f * indices[i];
      labels[i] = 10.0f * indices[i];
    }
    ++reads;
    return absl::OkStatus();
  }

  uint64_t bad_example = ~0ull;
  mutable std::atomic<int> reads = 0;

 private:
  const uint64_t size_;
};

// Returns the given leases, then ends, fails or waits for Cancel.
class FakeLeases : public LeaseSource {
 public:
  enum class Then { kEnd, kFail, kWait };

  explicit FakeLeases(std::deque<DataLease> leases, Then then = Then::kEnd) : then_(then), leases_(std::move(leases)) {}

  absl::StatusOr<std::optional<LeasedData>> Next() override {
    {
      absl::MutexLock lock(&mutex_);
      EXPECT_FALSE(asked_) << "Next was called by two threads at once";
      if (!leases_.empty()) {
        const DataLease lease = leases_.front();
        leases_.pop_front();
        return LeasedData{lease};
      }
      asked_ = true;
    }
    if (then_ == Then::kWait) cancelled_.WaitForNotification();
    absl::MutexLock lock(&mutex_);
    asked_ = false;
    if (then_ == Then::kWait) return absl::CancelledError("cancelled");
    if (then_ == Then::kFail) return absl::UnavailableError("no coordinator");
    return std::nullopt;
  }

  void Cancel() override {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_.HasBeenNotified()) cancelled_.Notify();
  }

 private:
  const Then then_;
  absl::Notification cancelled_;
  absl::Mutex mutex_;
  std::deque<DataLease> leases_ ABSL_GUARDED_BY(mutex_);
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;
};

// Returns one lease whose examples are a data set of their own.
class LeaseOfRows : public LeaseSource {
 public:
  absl::StatusOr<std::optional<LeasedData>> Next() override {
    if (std::exchange(done_, true)) return std::nullopt;
    DataLease lease{.id = 1, .begin = 70, .end = 75, .steps = 3};
    return LeasedData{lease, std::make_shared<CountingDataset>(5)};
  }
  void Cancel() override {}

 private:
  bool done_ = false;
};

struct Sources {
  CountingDataset dataset;
  FakeLeases leases;
};

// A stream that owns its data set and the source of its leases.
class OwningStream : private Sources, public BatchStream {
 public:
  OwningStream(uint64_t examples, std::deque<DataLease> leases, const Options& options,
               FakeLeases::Then then = FakeLeases::Then::kEnd)
      : Sources{CountingDataset(examples), FakeLeases(std::move(leases), then)},
        BatchStream(&dataset, &(Sources::leases), options) {}
};

BatchStream::Options InOrder(uint32_t batch_size) { return {.batch_size = batch_size, .shuffle = false}; }

// Returns all batches up to the end; fails the test on an error.
std::vector<Batch> Drain(BatchStream& stream) {
  std::vector<Batch> batches;
  while (true) {
    absl::StatusOr<std::optional<Batch>> batch = stream.Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (!batch.ok() || !batch->has_value()) return batches;
    batches.push_back(**std::move(batch));
  }
}

// Formats each batch as "lease/epoch:examples", with "!" after the last batch of a lease.
std::vector<std::string> Shapes(const std::vector<Batch>& batches) {
  std::vector<std::string> shapes;
  for (const Batch& batch : batches) {
    EXPECT_EQ(batch.labels.size(), batch.examples);
    EXPECT_EQ(batch.features.size(), batch.examples * 2);
    shapes.push_back(
        absl::StrCat(batch.lease_id, "/", batch.epoch, ":", batch.examples, batch.last_of_lease ? "!" : ""));
  }
  return shapes;
}

using Strings = std::vector<std::string>;
using Floats = std::vector<float>;

TEST(BatchStreamTest, RowsOfALeaseAreReadInTheirOrder) {
  const CountingDataset dataset(1);
  LeaseOfRows leases;
  BatchStream stream(&dataset, &leases, {.batch_size = 2});
  const std::vector<Batch> batches = Drain(stream);
  ASSERT_EQ(batches.size(), 3);
  EXPECT_EQ(batches[0].labels, std::vector<float>({0, 10}));
  EXPECT_EQ(batches[1].labels, std::vector<float>({20, 30}));
  EXPECT_EQ(batches[2].labels, std::vector<float>({40}));
  EXPECT_TRUE(batches[2].last_of_lease);
}

TEST(BatchStreamTest, CutsALeaseIntoConsecutiveBatches) {
  OwningStream stream(10, {{.id = 4, .epoch = 1, .begin = 2, .end = 7, .steps = 3}}, InOrder(2));
  const std::vector<Batch> batches = Drain(stream);
  EXPECT_EQ(Shapes(batches), (Strings{"4/1:2", "4/1:2", "4/1:1!"}));
  EXPECT_EQ(batches[0].features, (Floats{2, -2, 3, -3}));
  EXPECT_EQ(batches[0].labels, (Floats{20, 30}));
  EXPECT_EQ(batches[2].labels, (Floats{60}));
}

TEST(BatchStreamTest, SaysOfEachBatchWhereInTheJobItBegins) {
  OwningStream stream(10,
                      {{.id = 1, .begin = 0, .end = 3, .steps = 4, .share_begin = 0.25, .share_end = 0.75},
                       {.id = 2, .begin = 3, .end = 5, .steps = 1, .share_begin = 0.75, .share_end = 1}},
                      InOrder(2));
  std::vector<double> shares;
  for (const Batch& batch : Drain(stream)) shares.push_back(batch.share);
  EXPECT_EQ(shares, (std::vector<double>{0.25, 0.375, 0.5, 0.625, 0.75}));
}

TEST(BatchStreamTest, FillsUpTheStepsWithEmptyBatches) {
  OwningStream stream(10,
                      {{.id = 1, .begin = 0, .end = 3, .steps = 4},
                       {.id = 2, .begin = 3, .end = 3, .steps = 2},
                       {.id = 3, .begin = 4, .end = 5, .steps = 1}},
                      InOrder(2));
  EXPECT_EQ(Shapes(Drain(stream)), (Strings{"1/0:2", "1/0:1", "1/0:0", "1/0:0!", "2/0:0", "2/0:0!", "3/0:1!"}));
}

TEST(BatchStreamTest, KeepsTheOrderWithManyThreads) {
  CountingDataset dataset(1000);
  FakeLeases leases(
      {{.id = 1, .begin = 0, .end = 500, .steps = 167}, {.id = 2, .begin = 500, .end = 1000, .steps = 167}});
  BatchStream::Options options = InOrder(3);
  options.threads = 4;
  options.prefetch_batches = 7;
  BatchStream stream(&dataset, &leases, options);
  float next = 0;
  for (const Batch& batch : Drain(stream)) {
    for (const float label : batch.labels) {
      EXPECT_EQ(label, next);
      next += 10;
    }
  }
  EXPECT_EQ(next, 10000);
}

TEST(BatchStreamTest, RecycledBuffersHoldTheNextBatchesData) {
  OwningStream stream(100, {{.id = 1, .begin = 0, .end = 100, .steps = 34}}, InOrder(3));
  float next = 0;
  while (true) {
    absl::StatusOr<std::optional<Batch>> batch = stream.Next();
    ASSERT_TRUE(batch.ok()) << batch.status();
    if (!batch->has_value()) break;
    EXPECT_EQ((*batch)->features.size(), (*batch)->examples * 2);
    for (const float label : (*batch)->labels) {
      EXPECT_EQ(label, next);
      next += 10;
    }
    stream.Recycle(**std::move(batch));
  }
  EXPECT_EQ(next, 1000);
}

TEST(BatchStreamTest, ReadsAheadNoFurtherThanAsked) {
  CountingDataset dataset(100);
  FakeLeases leases({{.id = 1, .begin = 0, .end = 100, .steps = 100}});
  BatchStream::Options options = InOrder(1);
  options.prefetch_batches = 2;
  BatchStream stream(&dataset, &leases, options);
  for (int returned = 1; returned <= 50; ++returned) {
    ASSERT_TRUE(stream.Next().ok());
    EXPECT_LE(dataset.reads, returned + 2);
  }
}

TEST(BatchStreamTest, ReadsAgainOnceHalfIsUsed) {
  CountingDataset dataset(100);
  FakeLeases leases({{.id = 1, .begin = 0, .end = 100, .steps = 100}});
  BatchStream stream(&dataset, &leases, InOrder(1));
  const auto await_reads = [&](int reads) {
    while (dataset.reads < reads) absl::SleepFor(absl::Milliseconds(1));
  };
  await_reads(4);
  for (int round = 1; round < 20; ++round) {
    ASSERT_TRUE(stream.Next().ok());
    absl::SleepFor(absl::Milliseconds(2));
    EXPECT_EQ(dataset.reads, 2 + 2 * round);
    ASSERT_TRUE(stream.Next().ok());
    await_reads(4 + 2 * round);
  }
}

class WorkersTest : public testing::TestWithParam<uint64_t> {};

TEST_P(WorkersTest, TogetherSeeEachExampleOfAnEpochOnce) {
  constexpr uint64_t kExamples = 1009;
  const uint64_t workers = GetParam();
  const uint32_t steps = (kExamples / workers + 1) / 13 + 1;
  CountingDataset dataset(kExamples);
  std::vector<std::vector<float>> orders(2);
  for (uint64_t worker = 0; worker < workers; ++worker) {
    const uint64_t begin = kExamples * worker / workers;
    const uint64_t end = kExamples * (worker + 1) / workers;
    FakeLeases leases({{.id = 1, .epoch = 0, .begin = begin, .end = end, .steps = steps},
                       {.id = 2, .epoch = 1, .begin = begin, .end = end, .steps = steps}});
    BatchStream stream(&dataset, &leases, {.seed = 99, .batch_size = 13, .threads = 2});
    const std::vector<Batch> batches = Drain(stream);
    EXPECT_EQ(batches.size(), 2 * steps);
    for (const Batch& batch : batches) {
      std::vector<float>& order = orders[batch.epoch];
      order.insert(order.end(), batch.labels.begin(), batch.labels.end());
    }
  }
  EXPECT_NE(orders[0], orders[1]);
  for (std::vector<float>& order : orders) {
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    std::sort(order.begin(), order.end());
    ASSERT_EQ(order.size(), kExamples);
    for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], 10.0f * i);
  }
}

INSTANTIATE_TEST_SUITE_P(Numbers, WorkersTest, testing::Values(1, 3, 4));

TEST(BatchStreamTest, TheOrderDependsOnTheSeedAlone) {
  const auto labels = [](uint64_t seed, uint32_t threads) {
    OwningStream stream(101, {{.id = 1, .begin = 0, .end = 101, .steps = 1}},
                        {.seed = seed, .batch_size = 101, .threads = threads});
    return Drain(stream).at(0).labels;
  };
  EXPECT_EQ(labels(5, 1), labels(5, 3));
  EXPECT_NE(labels(5, 1), labels(6, 1));
}

TEST(BatchStreamTest, PassesOnTheSourcesErrorAfterItsLastBatch) {
  OwningStream stream(10, {{.id = 1, .begin = 0, .end = 2, .steps = 1}}, InOrder(2), FakeLeases::Then::kFail);
  EXPECT_TRUE(stream.Next().ok());
  EXPECT_EQ(stream.Next().status(), absl::UnavailableError("no coordinator"));
  EXPECT_EQ(stream.Next().status(), absl::UnavailableError("no coordinator"));
}

TEST(BatchStreamTest, PassesOnTheReadersErrorInItsTurn) {
  for (const uint32_t threads : {1, 4}) {
    CountingDataset dataset(100);
    dataset.bad_example = 3;
    FakeLeases leases({{.id = 1, .begin = 0, .end = 100, .steps = 100}});
    BatchStream::Options options = InOrder(1);
    options.threads = threads;
    BatchStream stream(&dataset, &leases, options);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(stream.Next().ok()) << i;
    EXPECT_EQ(stream.Next().status(), absl::DataLossError("example is bad"));
    EXPECT_EQ(stream.Next().status(), absl::DataLossError("example is bad"));
  }
}

TEST(BatchStreamTest, StaysAtTheEnd) {
  OwningStream stream(10, {}, InOrder(2));
  EXPECT_EQ(Drain(stream).size(), 0);
  EXPECT_EQ(Drain(stream).size(), 0);
}

TEST(BatchStreamTest, RefusesALeaseThatMakesNoSense) {
  const auto error = [](DataLease lease) {
    OwningStream stream(10, {lease}, InOrder(2));
    return stream.Next().status();
  };
  EXPECT_EQ(error({.id = 7, .begin = 0, .end = 4, .steps = 0}),
            absl::InternalError("lease 7 of examples 0 to 4 has 0 steps, want at least 2 of 2"));
  EXPECT_EQ(error({.id = 7, .begin = 4, .end = 4, .steps = 0}),
            absl::InternalError("lease 7 of examples 4 to 4 has 0 steps, want at least 1 of 2"));
  EXPECT_EQ(error({.id = 7, .begin = 0, .end = 5, .steps = 2}),
            absl::InternalError("lease 7 of examples 0 to 5 has 2 steps, want at least 3 of 2"));
  EXPECT_EQ(error({.id = 7, .begin = 4, .end = 11, .steps = 9}),
            absl::InternalError("lease 7 of examples 4 to 11 does not fit the data set, want 0 to 10"));
  EXPECT_EQ(error({.id = 7, .begin = 4, .end = 3, .steps = 9}),
            absl::InternalError("lease 7 of examples 4 to 3 does not fit the data set, want 0 to 10"));
}

TEST(BatchStreamTest, RefusesABatchBeyondReason) {
  class Wide : public CountingDataset {
   public:
    Wide() : CountingDataset(10) {}
    uint64_t features() const override { return 1ull << 60; }
  } dataset;
  FakeLeases leases({{.id = 1, .begin = 0, .end = 10, .steps = 1}});
  BatchStream stream(&dataset, &leases, InOrder(64));
  EXPECT_EQ(stream.Next().status(),
            absl::InvalidArgumentError("a batch has 64 x 1152921504606846976 features, want at most "
                                       "1073741824 numbers"));
}

TEST(BatchStreamTest, CancelEndsANextThatWaits) {
  OwningStream stream(10, {}, InOrder(2), FakeLeases::Then::kWait);
  std::thread canceller([&] { stream.Cancel(); });
  EXPECT_EQ(stream.Next().status().code(), absl::StatusCode::kCancelled);
  canceller.join();
  EXPECT_EQ(stream.Next().status().code(), absl::StatusCode::kCancelled);
}

TEST(BatchStreamTest, DestructionEndsAWaitForALease) {
  OwningStream stream(10, {{.id = 1, .begin = 0, .end = 2, .steps = 1}}, {.batch_size = 2, .threads = 3},
                      FakeLeases::Then::kWait);
  EXPECT_TRUE(stream.Next().ok());
}

TEST(BatchStreamTest, DestructionEndsAWaitForRoom) {
  OwningStream stream(100, {{.id = 1, .begin = 0, .end = 100, .steps = 100}}, InOrder(1));
  EXPECT_TRUE(stream.Next().ok());
}

TEST(BatchStreamTest, SaysThatTheSourceHasNoLeaseForNow) {
  OwningStream stream(4, {{.id = 1, .begin = 0, .end = 4, .steps = 2}}, InOrder(2), FakeLeases::Then::kWait);
  EXPECT_TRUE(stream.AwaitLease(absl::InfiniteDuration()));
  ASSERT_TRUE(stream.Next().ok());
  EXPECT_TRUE(stream.AwaitLease(absl::InfiniteDuration()));
  ASSERT_TRUE(stream.Next().ok());
  // The reader soon asks for the next lease.
  while (stream.AwaitLease(absl::Milliseconds(1))) {
  }
  stream.Cancel();
  EXPECT_TRUE(stream.AwaitLease(absl::InfiniteDuration()));
}

TEST(BatchStreamTest, TheEndIsNoWaitForALease) {
  OwningStream stream(2, {{.id = 1, .begin = 0, .end = 2, .steps = 1}}, InOrder(2));
  ASSERT_TRUE(stream.Next().ok());
  EXPECT_TRUE(stream.AwaitLease(absl::InfiniteDuration()));
  EXPECT_FALSE(stream.Next()->has_value());
}

TEST(BatchStreamTest, ALeaseWithoutStepsMarksTheEndOfAnEpoch) {
  OwningStream stream(20, {{1, 0, 0, 10, 1}, {.epoch = 1}, {2, 1, 0, 10, 1}}, InOrder(10));
  std::vector<bool> marks;
  for (Batch& batch : Drain(stream)) {
    marks.push_back(batch.marks_epoch);
    EXPECT_EQ(batch.examples, batch.marks_epoch ? 0 : 10);
    EXPECT_EQ(batch.epoch, marks.size() > 1 ? 1 : 0);
    stream.Recycle(std::move(batch));
  }
  EXPECT_EQ(marks, (std::vector<bool>{false, true, false}));
}

}  // namespace
}  // namespace ballast
