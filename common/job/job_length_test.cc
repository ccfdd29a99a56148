// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_length.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

namespace ballast {
namespace {

v1::Job Parse(const std::string& text) {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return job;
}

TEST(JobLengthTest, SyncMakesOneUpdateForEachStepOfAllWorkers) {
  const v1::Job job = Parse("training { epochs: 12 batch_size: 64 } policy { sync {} }");
  // 60000 / 128 = 468.75: the last step of an epoch is smaller.
  EXPECT_EQ(CountUpdates(job, 60000, 2), 12 * 469);
  EXPECT_EQ(CountUpdates(job, 60000, 1), 12 * 938);
  EXPECT_EQ(CountUpdates(job, 3, 4), 12);
}

TEST(JobLengthTest, AsyncAndBoundedMakeOneForEachPushOfAnyWorker) {
  for (const char* policy : {"policy { async {} }", "policy { bounded { steps_ahead: 4 } }"}) {
    const v1::Job job = Parse(std::string("training { epochs: 2 batch_size: 64 } ") + policy);
    EXPECT_EQ(CountUpdates(job, 60000, 1), 2 * 938);
    EXPECT_EQ(CountUpdates(job, 60000, 4), 2 * 938);
  }
}

TEST(JobLengthTest, AccumulatedBatchesMakeOnePush) {
  const v1::Job job = Parse("training { epochs: 1 batch_size: 10 accumulate_batches: 5 } policy { async {} }");
  EXPECT_EQ(BatchesPerPush(job), 5);
  EXPECT_EQ(CountUpdates(job, 1000, 2), 20);
  EXPECT_EQ(CountUpdates(job, 1001, 2), 21);
}

TEST(JobLengthTest, LocalSgdMakesOneUpdateForEachRound) {
  const v1::Job job = Parse("training { epochs: 3 batch_size: 10 } policy { local_sgd { local_steps: 4 } }");
  EXPECT_EQ(BatchesPerPush(job), 4);
  // 100 batches, 50 per worker: three leases of 16, then 2 more.
  EXPECT_EQ(CountUpdates(job, 1000, 2), 3 * 13);
}

TEST(JobLengthTest, ALeaseIsWholePushes) {
  EXPECT_EQ(BatchesPerLease(1), 16);
  EXPECT_EQ(BatchesPerLease(5), 20);
  EXPECT_EQ(BatchesPerLease(16), 16);
  EXPECT_EQ(BatchesPerLease(100), 100);
  EXPECT_EQ(BatchesPerLease(uint64_t{65536} * 1000000), 1 << 20);
}

TEST(JobLengthTest, CountsTheLargestJobThatTheLimitsAllow) {
  v1::Job job = Parse(
      "training { epochs: 1 batch_size: 1048576 accumulate_batches: 65536 } "
      "policy { local_sgd { local_steps: 1000000 } }");
  EXPECT_EQ(CountUpdates(job, uint64_t{1} << 48, 4096), 1);
  job.mutable_policy()->mutable_async();
  EXPECT_EQ(CountUpdates(job, uint64_t{1} << 48, 4096), uint64_t{1} << 12);
}

TEST(JobLengthTest, ScheduleWithoutATotalEndsWithTheJob) {
  const auto with = [](const std::string& schedule) {
    return WithScheduleLength(Parse("optimizer { schedule { " + schedule + " warmup: 3 } }").optimizer(), 700)
        .schedule();
  };
  EXPECT_EQ(with("cosine { min_rate_ratio: 0.5 }").cosine().total(), 700);
  EXPECT_EQ(with("cosine { min_rate_ratio: 0.5 }").cosine().min_rate_ratio(), 0.5);
  EXPECT_EQ(with("cosine {}").warmup(), 3);
  EXPECT_EQ(with("polynomial {}").polynomial().total(), 700);
  EXPECT_EQ(with("one_cycle {}").one_cycle().total(), 700);
  for (const char* schedule : {"cosine {}", "polynomial {}", "one_cycle {}"}) {
    EXPECT_TRUE(with(schedule).total_from_job()) << schedule;
  }
}

TEST(JobLengthTest, ScheduleKeepsTheTotalThatItHas) {
  const v1::Optimizer optimizer = Parse("optimizer { schedule { cosine { total: 9 } } }").optimizer();
  EXPECT_EQ(WithScheduleLength(optimizer, 700).schedule().cosine().total(), 9);
  EXPECT_FALSE(WithScheduleLength(optimizer, 700).schedule().total_from_job());
  EXPECT_FALSE(WithScheduleLength(v1::Optimizer(), 700).has_schedule());
  const v1::Optimizer step = Parse("optimizer { schedule { step { every: 5 factor: 0.5 } } }").optimizer();
  EXPECT_FALSE(WithScheduleLength(step, 700).schedule().total_from_job());
}

TEST(JobLengthTest, AVeryShortJobStillHasAValidSchedule) {
  const v1::Optimizer optimizer = Parse("optimizer { schedule { one_cycle {} } }").optimizer();
  EXPECT_EQ(WithScheduleLength(optimizer, 1).schedule().one_cycle().total(), 2);
}

}  // namespace
}  // namespace ballast
