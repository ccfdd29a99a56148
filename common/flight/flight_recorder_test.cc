// SPDX-License-Identifier: Apache-2.0
#include "common/flight/flight_recorder.h"

#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;

TEST(FlightRecorderTest, KeepsEveryFieldOfTheNewestEvents) {
  FlightRecorder recorder(3);
  const absl::Time before = absl::Now();
  for (uint64_t step = 1; step <= 5; ++step) {
    recorder.Add({.activity = FlightActivity::kPullRows,
                  .edge = FlightEdge::kEnd,
                  .code = absl::StatusCode::kUnauthenticated,
                  .peer = 4'000'000'000,
                  .step = step << 40,
                  .tensor = 7,
                  .slice = 4'000'000'001,
                  .amount = uint64_t{1} << 63});
  }
  FlightRecorder::Copy copy = recorder.Read();
  EXPECT_EQ(copy.overwritten, 2);
  ASSERT_THAT(copy.events, SizeIs(3));
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_GE(copy.events[i].time, before);
    EXPECT_LE(copy.events[i].time, absl::Now());
    const FlightEvent want = {.time = copy.events[i].time,
                              .activity = FlightActivity::kPullRows,
                              .edge = FlightEdge::kEnd,
                              .code = absl::StatusCode::kUnauthenticated,
                              .peer = 4'000'000'000,
                              .step = (i + 3) << 40,
                              .tensor = 7,
                              .slice = 4'000'000'001,
                              .amount = uint64_t{1} << 63};
    EXPECT_EQ(copy.events[i], want);
  }
}

TEST(FlightRecorderTest, NamesOnlyTheTensorsOfItsEvents) {
  FlightRecorder recorder(10);
  recorder.NameTensor(1, "fc/weight");
  recorder.NameTensor(2, "fc/bias");
  recorder.Add({.tensor = 2});
  EXPECT_THAT(recorder.Read().tensors, ElementsAre(Pair(2, "fc/bias")));
}

TEST(FlightRecorderTest, RecordsNothingWhileOff) {
  FlightRecorder recorder(10);
  recorder.set_on(false);
  recorder.Add({});
  EXPECT_THAT(recorder.Read().events, SizeIs(0));
}

// Each event has the same number in all fields, so that a mixture of two would show.
TEST(FlightRecorderTest, NeverReadsHalfAnEvent) {
  FlightRecorder recorder(64);
  std::vector<std::thread> writers;
  for (uint32_t writer = 0; writer < 3; ++writer) {
    writers.emplace_back([&recorder, writer] {
      for (uint32_t i = 0; i < 20000; ++i) {
        const uint32_t number = i * 3 + writer;
        recorder.Add({.peer = number, .step = number, .tensor = number, .slice = number, .amount = number});
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    for (const FlightEvent& event : recorder.Read().events) {
      EXPECT_EQ(event.step, event.peer);
      EXPECT_EQ(event.tensor, event.peer);
      EXPECT_EQ(event.amount, event.peer);
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_THAT(recorder.Read().events, SizeIs(64));
}

TEST(FlightScopeTest, AnActivityThatWasLeftHasNoSuccess) {
  const auto last = [] { return FlightRecorder::OfProcess().Read().events.back(); };
  {
    FlightScope scope({.activity = FlightActivity::kStep, .step = 5});
    EXPECT_EQ(last().edge, FlightEdge::kBegin);
  }
  EXPECT_EQ(last().edge, FlightEdge::kEnd);
  EXPECT_EQ(last().code, absl::StatusCode::kUnknown);
  {
    FlightScope scope({.activity = FlightActivity::kStep, .step = 6});
    scope.End(absl::OkStatus());
  }
  EXPECT_EQ(last().code, absl::StatusCode::kOk);
}

}  // namespace
}  // namespace ballast
