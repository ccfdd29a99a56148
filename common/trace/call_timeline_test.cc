// SPDX-License-Identifier: Apache-2.0
#include "common/trace/call_timeline.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

constexpr char kPush[] = "/ballast.v1.ParameterService/Push";

class CallTracerTest : public ::testing::Test {
 protected:
  ManualClock clock_{absl::FromUnixSeconds(100)};
  TimelineRecorder timeline_{StepRange{2, 2}, &clock_};
  const TraceContext trace_ = {.trace_high = 1, .trace_low = 2, .span = 3};
};

TEST_F(CallTracerTest, SpanOfARecordedStepIsSampledAndKept) {
  CallTracer tracer(trace_, &timeline_);
  timeline_.BeginStep(2);
  CallSpan call = tracer.Begin(kPush);
  EXPECT_TRUE(call.context.sampled);
  EXPECT_EQ(call.context.TraceId(), trace_.TraceId());
  EXPECT_NE(call.context.span, 0u);
  EXPECT_NE(call.context.span, 3u);
  EXPECT_EQ(call.parent, 3u);
  clock_.Advance(absl::Milliseconds(5));
  tracer.End(call);
  const CallTimeline::Recording recording = tracer.calls().Copy();
  ASSERT_EQ(recording.calls.size(), 1u);
  EXPECT_EQ(recording.calls[0].method, kPush);
  EXPECT_EQ(recording.calls[0].begin, absl::FromUnixSeconds(100));
  EXPECT_EQ(recording.calls[0].end, absl::FromUnixMillis(100005));
}

TEST_F(CallTracerTest, SpanOfAnotherStepStillNamesTheTrace) {
  CallTracer tracer(trace_, &timeline_);
  timeline_.BeginStep(3);
  const CallSpan call = tracer.Begin(kPush);
  EXPECT_FALSE(call.context.sampled);
  EXPECT_EQ(call.context.TraceId(), trace_.TraceId());
  EXPECT_NE(call.context.span, 0u);
  tracer.End(call);
  EXPECT_TRUE(tracer.calls().Copy().calls.empty());
}

TEST_F(CallTracerTest, CallThatEndsAfterItsStepIsKept) {
  CallTracer tracer(trace_, &timeline_);
  timeline_.BeginStep(2);
  const CallSpan call = tracer.Begin(kPush);
  timeline_.BeginStep(3);
  tracer.End(call);
  EXPECT_EQ(tracer.calls().Copy().calls.size(), 1u);
}

TEST(UnrecordedCallTracerTest, PassesTheTracesOwnSamplingOn) {
  for (const bool sampled : {false, true}) {
    CallTracer tracer({.trace_high = 1, .trace_low = 2, .span = 3, .sampled = sampled}, /*timeline=*/nullptr);
    const CallSpan call = tracer.Begin("/ballast.v1.ParameterService/Push");
    EXPECT_EQ(call.context.sampled, sampled);
    EXPECT_EQ(call.context.trace_low, 2u);
    EXPECT_EQ(call.parent, 3u);
    EXPECT_NE(call.context.span, 3u);
    tracer.End(call);
    EXPECT_TRUE(tracer.calls().Copy().calls.empty());
  }
}

TEST(CallTimelineTest, CallsBeyondItsRoomAreCounted) {
  CallTimeline timeline(/*most_calls=*/2);
  for (uint64_t step = 1; step <= 5; ++step) {
    CallSpan call;
    call.step = step;
    timeline.Add(call);
  }
  const CallTimeline::Recording recording = timeline.Copy();
  ASSERT_EQ(recording.calls.size(), 2u);
  EXPECT_EQ(recording.calls[1].step, 2u);
  EXPECT_EQ(recording.left_out, 3u);
}

}  // namespace
}  // namespace ballast
