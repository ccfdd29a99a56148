// SPDX-License-Identifier: Apache-2.0
#include "common/trace/timeline_recorder.h"

#include <gtest/gtest.h>

#include <thread>

namespace ballast {
namespace {

class TimelineTest : public ::testing::Test {
 protected:
  ManualClock clock_{absl::FromUnixSeconds(100)};
};

TEST_F(TimelineTest, ScopeLastsFromItsBeginToItsEnd) {
  TimelineRecorder timeline({1, 10}, &clock_);
  timeline.BeginStep(3);
  {
    const TimelineScope span(&timeline, TimelineRow::kCompute, "forward", "fc1", 64);
    clock_.Advance(absl::Milliseconds(5));
  }
  const TimelineRecorder::Recording recording = timeline.Copy();
  ASSERT_EQ(recording.spans.size(), 1);
  const TimelineSpan& span = recording.spans[0];
  EXPECT_EQ(span.row, TimelineRow::kCompute);
  EXPECT_EQ(recording.names[span.name], "forward fc1");
  EXPECT_EQ(span.begin, absl::FromUnixSeconds(100));
  EXPECT_EQ(span.end, absl::FromUnixMillis(100005));
  EXPECT_EQ(span.step, 3);
  EXPECT_EQ(span.bytes, 64);
}

TEST_F(TimelineTest, OnlyTheChosenStepsAreRecorded) {
  TimelineRecorder timeline({2, 3}, &clock_);
  EXPECT_FALSE(timeline.on());
  for (uint64_t step = 1; step <= 4; ++step) {
    timeline.BeginStep(step);
    const TimelineScope span(&timeline, TimelineRow::kSteps, "step");
  }
  const TimelineRecorder::Recording recording = timeline.Copy();
  ASSERT_EQ(recording.spans.size(), 2);
  EXPECT_EQ(recording.spans[0].step, 2);
  EXPECT_EQ(recording.spans[1].step, 3);
  EXPECT_EQ(recording.names, std::vector<std::string>{"step"});
}

TEST_F(TimelineTest, WhatComesBeforeTheFirstStepBelongsToIt) {
  TimelineRecorder timeline({1, 1}, &clock_);
  EXPECT_TRUE(timeline.on());
  { const TimelineScope span(&timeline, TimelineRow::kWait, "wait"); }
  EXPECT_EQ(timeline.Copy().spans.at(0).step, 0);
}

TEST_F(TimelineTest, ScopeThatBeginsInARecordedStepIsKeptWhenItEndsLater) {
  TimelineRecorder timeline({1, 1}, &clock_);
  {
    const TimelineScope span(&timeline, TimelineRow::kWait, "wait");
    timeline.BeginStep(2);
  }
  EXPECT_EQ(timeline.Copy().spans.size(), 1);
}

TEST_F(TimelineTest, NoTimelineRecordsNothing) { const TimelineScope span(nullptr, TimelineRow::kCompute, "forward"); }

TEST_F(TimelineTest, SpansAboveTheLimitAreCountedAndLeftOut) {
  TimelineRecorder timeline({1, 1}, &clock_, /*most_spans=*/2);
  for (int i = 0; i < 5; ++i) timeline.Add({}, "same");
  const TimelineRecorder::Recording recording = timeline.Copy();
  EXPECT_EQ(recording.spans.size(), 2);
  EXPECT_EQ(recording.left_out, 3);
}

TEST_F(TimelineTest, SpansOfManyThreadsAreAllThere) {
  TimelineRecorder timeline({1, 1}, &clock_);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&timeline] {
      for (int k = 0; k < 1000; ++k) const TimelineScope span(&timeline, TimelineRow::kCopies, "upload");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(timeline.Copy().spans.size(), 4000);
}

TEST(ParseStepRangeTest, TakesFirstAndLast) {
  EXPECT_EQ(ParseStepRange("5-12")->first, 5);
  EXPECT_EQ(ParseStepRange("5-12")->last, 12);
  EXPECT_EQ(ParseStepRange("7-7")->last, 7);
}

TEST(ParseStepRangeTest, RefusesWhatIsNoRange) {
  for (const char* text : {"", "5", "0-3", "4-3", "-1-3", "a-b", "1-2-3", "1-", "1..3"}) {
    const absl::Status status = ParseStepRange(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(std::string(status.message()),
              std::string("got \"") + text + "\", want the first and the last step, from 1, as in 1-200");
  }
}

}  // namespace
}  // namespace ballast
