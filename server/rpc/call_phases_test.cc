// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_phases.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

class CallPhasesTest : public testing::Test {
 protected:
  ManualClock clock_;
  CallPhases phases_{"push_pull"};
};

TEST_F(CallPhasesTest, EachPhaseHasTheTimeOfItsStays) {
  CallTimer timer(&phases_, &clock_);
  timer.Enter(CallPhase::kQueue);
  clock_.Advance(absl::Microseconds(3));
  timer.Enter(CallPhase::kApply);
  clock_.Advance(absl::Microseconds(40));
  timer.Enter(CallPhase::kWait);
  clock_.Advance(absl::Microseconds(500));
  timer.Enter(CallPhase::kSend);
  clock_.Advance(absl::Microseconds(6));
  timer.Enter(CallPhase::kWait);
  clock_.Advance(absl::Microseconds(200));
  timer.Enter(CallPhase::kSend);
  clock_.Advance(absl::Microseconds(1));
  timer.End();
  const v1::GetStatusResponse::CallPhases proto = phases_.ToProto();
  EXPECT_EQ(proto.method(), "push_pull");
  EXPECT_EQ(proto.queue().sum(), 3);
  EXPECT_EQ(proto.apply().sum(), 40);
  EXPECT_EQ(proto.wait().sum(), 700);
  EXPECT_EQ(proto.send().sum(), 7);
  EXPECT_EQ(proto.wait().count(), 1u);
}

TEST_F(CallPhasesTest, CallCountsOnceInEveryPhase) {
  CallTimer timer(&phases_, &clock_);
  timer.Enter(CallPhase::kQueue);
  timer.End();
  const v1::GetStatusResponse::CallPhases proto = phases_.ToProto();
  for (const v1::Histogram* phase : {&proto.queue(), &proto.apply(), &proto.wait(), &proto.send()}) {
    EXPECT_EQ(phase->count(), 1u);
    EXPECT_EQ(phase->max(), 0u);
  }
}

TEST_F(CallPhasesTest, CallThatWasRefusedUnreadDoesNotCount) {
  CallTimer(&phases_, &clock_).End();
  EXPECT_EQ(phases_.ToProto().queue().count(), 0u);
}

TEST_F(CallPhasesTest, ClockThatIsSetBackTakesNoTime) {
  CallTimer timer(&phases_, &clock_);
  timer.Enter(CallPhase::kApply);
  clock_.Advance(-absl::Seconds(5));
  timer.Enter(CallPhase::kSend);
  clock_.Advance(absl::Microseconds(2));
  timer.End();
  EXPECT_EQ(phases_.ToProto().apply().max(), 0u);
  EXPECT_EQ(phases_.ToProto().send().sum(), 2);
}

TEST_F(CallPhasesTest, TracedCallKeepsEachStay) {
  for (CallPhases* phases : {&phases_, static_cast<CallPhases*>(nullptr)}) {
    CallTimer timer(phases, &clock_);
    timer.KeepStays();
    const absl::Time begin = clock_.Now();
    timer.Enter(CallPhase::kQueue);
    clock_.Advance(absl::Microseconds(3));
    timer.Enter(CallPhase::kWait);
    clock_.Advance(absl::Microseconds(4));
    timer.Enter(CallPhase::kQueue);
    timer.End();
    const std::vector<CallSpan::Part> stays = timer.TakeStays();
    ASSERT_EQ(stays.size(), 3u);
    EXPECT_EQ(stays[0].name, "queue");
    EXPECT_EQ(stays[0].begin, begin);
    EXPECT_EQ(stays[1].name, "wait");
    EXPECT_EQ(stays[1].begin, begin + absl::Microseconds(3));
    EXPECT_EQ(stays[1].end, begin + absl::Microseconds(7));
    EXPECT_EQ(stays[2].name, "queue");
  }
  EXPECT_EQ(phases_.ToProto().queue().count(), 1u) << "the call without phases does not count";
}

TEST_F(CallPhasesTest, CallOfAnotherMethodIsNotMeasured) {
  CallTimer timer(nullptr, nullptr);
  timer.Enter(CallPhase::kQueue);
  timer.End();
  EXPECT_EQ(phases_.ToProto().queue().count(), 0u);
}

}  // namespace
}  // namespace ballast
