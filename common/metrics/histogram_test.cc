// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/histogram.h"

#include <limits>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

std::vector<uint64_t> Buckets(const v1::Histogram& proto) { return {proto.buckets().begin(), proto.buckets().end()}; }

TEST(HistogramTest, BucketZeroCountsZerosAndBucketIWhatHasIBits) {
  Histogram histogram;
  for (uint64_t value : {0, 0, 1, 2, 3, 4, 7, 8}) histogram.Add(value);
  EXPECT_EQ(Buckets(histogram.ToProto()), (std::vector<uint64_t>{2, 1, 2, 2, 1}));
}

TEST(HistogramTest, KeepsCountSumAndMaximum) {
  Histogram histogram;
  for (uint64_t value : {5, 1, 100, 0}) histogram.Add(value);
  const v1::Histogram proto = histogram.ToProto();
  EXPECT_EQ(proto.count(), 4);
  EXPECT_EQ(proto.sum(), 106.0);
  EXPECT_EQ(proto.max(), 100);
}

TEST(HistogramTest, TakesTheLargestValue) {
  Histogram histogram;
  histogram.Add(std::numeric_limits<uint64_t>::max());
  const v1::Histogram proto = histogram.ToProto();
  ASSERT_EQ(proto.buckets_size(), 65);
  EXPECT_EQ(proto.buckets(64), 1);
  EXPECT_EQ(proto.max(), std::numeric_limits<uint64_t>::max());
}

TEST(HistogramTest, AnEmptyOneHasNoBuckets) {
  const v1::Histogram proto = Histogram().ToProto();
  EXPECT_EQ(proto.buckets_size(), 0);
  EXPECT_EQ(proto.count(), 0);
}

TEST(HistogramTest, LosesNothingThatSeveralThreadsAdd) {
  Histogram histogram;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (uint64_t value = 0; value < 10000; ++value) histogram.Add(value);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const v1::Histogram proto = histogram.ToProto();
  EXPECT_EQ(proto.count(), 40000);
  EXPECT_EQ(proto.sum(), 4 * 49995000.0);
  EXPECT_EQ(proto.max(), 9999);
  EXPECT_EQ(proto.buckets(0), 4);
  EXPECT_EQ(proto.buckets(13), 4 * 4096);
}

TEST(HistogramTest, MergesALongerAndAShorterOne) {
  Histogram small, large;
  small.Add(1);
  small.Add(0);
  large.Add(9);
  v1::Histogram merged = small.ToProto();
  Merge(large.ToProto(), merged);
  EXPECT_EQ(Buckets(merged), (std::vector<uint64_t>{1, 1, 0, 0, 1}));
  Merge(small.ToProto(), merged);
  EXPECT_EQ(Buckets(merged), (std::vector<uint64_t>{2, 2, 0, 0, 1}));
  EXPECT_EQ(merged.count(), 5);
  EXPECT_EQ(merged.sum(), 11.0);
  EXPECT_EQ(merged.max(), 9);
}

}  // namespace
}  // namespace ballast
