// SPDX-License-Identifier: Apache-2.0
#include "server/replication/replication_state.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using Actions = ReplicationState::Actions;
using Stage = ReplicationState::Stage;
using Wait = ReplicationState::Wait;

const std::vector<std::pair<Stage, std::string>> kStages = {
    {Stage::kNone, "none"},
    {Stage::kCatchingUp, "catching up"},
    {Stage::kClosingUp, "closing up"},
    {Stage::kInStep, "in step"},
    {Stage::kMayTakeOver, "may take over"},
    {Stage::kLost, "lost"},
    {Stage::kLostMayTakeOver, "lost, may take over"},
};

std::string Name(Stage stage) { return kStages[static_cast<size_t>(stage)].second; }

v1::StandbyTarget Target(uint64_t incarnation) {
  v1::StandbyTarget target;
  target.set_incarnation(incarnation);
  target.set_address(absl::StrCat("host:", incarnation));
  return target;
}

v1::StandbyReport Report(uint64_t incarnation, v1::StandbyReport::Stage stage) {
  v1::StandbyReport report;
  report.set_incarnation(incarnation);
  report.set_stage(stage);
  return report;
}

// Actions in the order in which they are performed.
std::string Describe(const Actions& actions) {
  std::vector<std::string> parts;
  if (actions.cancel) parts.push_back("cancel");
  if (actions.queue == Actions::Queue::kClear) parts.push_back("clear");
  if (actions.queue == Actions::Queue::kRelease) parts.push_back("release held back");
  if (actions.release > 0) parts.push_back(absl::StrCat("release ", actions.release));
  if (!actions.status.ok()) parts.push_back(std::string(actions.status.message()));
  if (!actions.log.empty()) parts.push_back(actions.log);
  if (actions.report_now) parts.push_back("report");
  return absl::StrJoin(parts, "; ");
}

// Shard 3 with six changes and standby 7, which has acknowledged the change at 4 (5 once it was in step). The mark
// is 5. kNone: the stream to the standby is open, and the transfer has not begun.
ReplicationState At(Stage stage) {
  ReplicationState state(3, absl::Seconds(5));
  state.BeginServing(1);
  for (int i = 0; i < 5; ++i) state.Append();
  state.SetTarget(Target(7));
  state.TakeTarget();
  state.OnOpen(Target(7));
  const bool may_take_over = stage == Stage::kMayTakeOver || stage == Stage::kLostMayTakeOver;
  if (stage != Stage::kNone) state.BeginTransfer(Target(7));
  if (stage == Stage::kCatchingUp) state.OnResponse(4, false, absl::Seconds(1));
  if (stage == Stage::kClosingUp || stage == Stage::kLost) state.OnResponse(4, true, absl::Seconds(1));
  if (stage == Stage::kInStep || may_take_over) state.OnResponse(5, true, absl::Seconds(1));
  if (may_take_over) state.Report();
  state.Append();
  if (stage == Stage::kLost || stage == Stage::kLostMayTakeOver) {
    state.OnStreamEnd(Target(7), absl::UnavailableError("broken"));
  }
  EXPECT_EQ(Name(state.stage()), Name(stage));
  return state;
}

const std::map<std::string, std::function<Actions(ReplicationState&)>> kEvents = {
    {"same target", [](ReplicationState& state) { return state.SetTarget(Target(7)); }},
    {"another target", [](ReplicationState& state) { return state.SetTarget(Target(8)); }},
    {"no target", [](ReplicationState& state) { return state.SetTarget(Target(0)); }},
    {"transfer begins",
     [](ReplicationState& state) {
       EXPECT_TRUE(state.BeginTransfer(Target(7)));
       return Actions();
     }},
    {"response", [](ReplicationState& state) { return state.OnResponse(4, false, absl::Milliseconds(1270)); }},
    {"response: all slices",
     [](ReplicationState& state) { return state.OnResponse(4, true, absl::Milliseconds(1270)); }},
    {"response: the mark", [](ReplicationState& state) { return state.OnResponse(5, true, absl::Milliseconds(1270)); }},
    {"response: all changes",
     [](ReplicationState& state) { return state.OnResponse(6, true, absl::Milliseconds(1270)); }},
    {"timeout not reached", [](ReplicationState& state) { return state.OnTime(absl::Seconds(5)); }},
    {"timeout", [](ReplicationState& state) { return state.OnTime(absl::Milliseconds(5001)); }},
    {"report",
     [](ReplicationState& state) {
       state.Report();
       return Actions();
     }},
    {"received: in step",
     [](ReplicationState& state) { return state.OnHeartbeat(Report(7, v1::StandbyReport::STAGE_IN_STEP)); }},
    {"received: lost",
     [](ReplicationState& state) { return state.OnHeartbeat(Report(7, v1::StandbyReport::STAGE_LOST)); }},
    {"received: another lost",
     [](ReplicationState& state) { return state.OnHeartbeat(Report(6, v1::StandbyReport::STAGE_LOST)); }},
    {"stream end",
     [](ReplicationState& state) { return state.OnStreamEnd(Target(7), absl::UnavailableError("broken")); }},
    {"close", [](ReplicationState& state) { return state.Close(absl::UnavailableError("closed")); }},
};

// A transfer begins once, and a stream that has ended does not end again.
bool Possible(Stage stage, absl::string_view event) {
  if (event == "transfer begins") return stage == Stage::kNone;
  return event != "stream end" || (stage != Stage::kLost && stage != Stage::kLostMayTakeOver);
}

struct Transition {
  std::vector<Stage> stages;
  std::string event;
  // Nothing: the stage stays.
  std::optional<Stage> next;
  std::string actions;
};

const std::vector<Stage> kFed = {Stage::kCatchingUp, Stage::kClosingUp, Stage::kInStep, Stage::kMayTakeOver};
const std::vector<Stage> kNotFed = {Stage::kNone, Stage::kLost, Stage::kLostMayTakeOver};

// Any other event in any other stage changes nothing and returns no actions.
const std::vector<Transition> kTransitions = {
    {kFed, "another target", Stage::kNone, "cancel; clear; release 6"},
    {kFed, "no target", Stage::kNone, "cancel; clear; release 6"},
    {kNotFed, "another target", Stage::kNone, "clear; release 6"},
    {kNotFed, "no target", Stage::kNone, "clear; release 6"},

    {{Stage::kNone}, "transfer begins", Stage::kCatchingUp, ""},
    {kFed, "response", {}, "release 4"},
    {{Stage::kCatchingUp}, "response: all slices", Stage::kClosingUp, "release 4"},
    {{Stage::kClosingUp, Stage::kInStep, Stage::kMayTakeOver}, "response: all slices", {}, "release 4"},
    // The mark is 6 if it is set by this response.
    {{Stage::kCatchingUp}, "response: the mark", Stage::kClosingUp, "release 5"},
    {{Stage::kClosingUp}, "response: the mark", Stage::kInStep, "release 5; standby 3: in step after 1.2s; report"},
    {{Stage::kInStep, Stage::kMayTakeOver}, "response: the mark", {}, "release 5"},
    {{Stage::kCatchingUp, Stage::kClosingUp},
     "response: all changes",
     Stage::kInStep,
     "release 6; standby 3: in step after 1.2s; report"},
    {{Stage::kInStep, Stage::kMayTakeOver}, "response: all changes", {}, "release 6"},

    {kFed, "timeout", {}, "cancel"},
    {{Stage::kInStep}, "report", Stage::kMayTakeOver, ""},
    {{Stage::kLost, Stage::kLostMayTakeOver}, "received: lost", Stage::kNone, "clear; release 6"},

    {{Stage::kNone, Stage::kCatchingUp, Stage::kClosingUp, Stage::kInStep},
     "stream end",
     Stage::kLost,
     "clear; release 6; standby 3 at host:7: stopped following: broken; report"},
    // The waits stay.
    {{Stage::kMayTakeOver},
     "stream end",
     Stage::kLostMayTakeOver,
     "clear; standby 3 at host:7: stopped following: broken; report"},

    {kFed, "close", {}, "release held back; release 6; closed"},
    {kNotFed, "close", {}, "release held back; release 6; closed"},
};

TEST(ReplicationStateTest, EachEventInEachStageHasTheTransitionOfTheTable) {
  for (const auto& [stage, stage_name] : kStages) {
    for (const auto& [event, run] : kEvents) {
      if (!Possible(stage, event)) continue;
      Stage next = stage;
      std::string want;
      for (const Transition& transition : kTransitions) {
        if (transition.event != event || !absl::c_linear_search(transition.stages, stage)) continue;
        next = transition.next.value_or(stage);
        want = transition.actions;
      }
      ReplicationState state = At(stage);
      EXPECT_EQ(Describe(run(state)), want) << stage_name << ": " << event;
      EXPECT_EQ(Name(state.stage()), Name(next)) << stage_name << ": " << event;
    }
  }
  for (const Transition& transition : kTransitions) EXPECT_TRUE(kEvents.contains(transition.event)) << transition.event;
}

TEST(ReplicationStateTest, EachStageHasItsWaitsAndItsReport) {
  struct Row {
    Stage stage;
    // The waits of the changes at 4 and 6.
    Wait acknowledged, last;
    bool fed;
    std::string report;
  };
  const std::vector<Row> rows = {
      {Stage::kNone, Wait::kNothing, Wait::kNothing, false, ""},
      {Stage::kCatchingUp, Wait::kLink, Wait::kLink, true, "incarnation: 7 stage: STAGE_CATCHING_UP"},
      {Stage::kClosingUp, Wait::kNothing, Wait::kAcknowledgment, true, "incarnation: 7 stage: STAGE_CATCHING_UP"},
      {Stage::kInStep, Wait::kNothing, Wait::kAcknowledgment, true, "incarnation: 7 stage: STAGE_IN_STEP"},
      {Stage::kMayTakeOver, Wait::kNothing, Wait::kAcknowledgment, true, "incarnation: 7 stage: STAGE_IN_STEP"},
      {Stage::kLost, Wait::kNothing, Wait::kNothing, false, "incarnation: 7 stage: STAGE_LOST reason: \"broken\""},
      {Stage::kLostMayTakeOver, Wait::kNothing, Wait::kAcknowledgment, false,
       "incarnation: 7 stage: STAGE_LOST reason: \"broken\""},
  };
  ASSERT_EQ(rows.size(), kStages.size());
  for (const Row& row : rows) {
    ReplicationState state = At(row.stage);
    EXPECT_EQ(state.WaitOf(4), row.acknowledged) << Name(row.stage);
    EXPECT_EQ(state.WaitOf(6), row.last) << Name(row.stage);
    EXPECT_EQ(state.fed(), row.fed) << Name(row.stage);
    EXPECT_EQ(state.Report().ShortDebugString(), row.report) << Name(row.stage);
    EXPECT_TRUE(state.closed().ok()) << Name(row.stage);
    state.Close(absl::UnavailableError("closed"));
    EXPECT_EQ(state.WaitOf(6), Wait::kNothing) << Name(row.stage);
  }
}

TEST(ReplicationStateTest, AStandbyFollowsOnceThereIsAJobAndThisProcessServesTheShard) {
  ReplicationState state(3, absl::Seconds(5));
  state.SetTarget(Target(7));
  EXPECT_FALSE(state.HasTarget());
  state.BeginServing(1);
  EXPECT_FALSE(state.HasTarget());
  ReplicationState declared = state;
  EXPECT_EQ(declared.Append(), 1);
  EXPECT_TRUE(declared.HasTarget());
  state.BeginJob();
  EXPECT_TRUE(state.HasTarget());
  EXPECT_EQ(state.TakeTarget().address(), "host:7");
  EXPECT_FALSE(state.HasTarget());
}

TEST(ReplicationStateTest, OpeningAStreamIsLogged) {
  ReplicationState state = At(Stage::kNone);
  EXPECT_EQ(Describe(state.OnOpen(Target(7))), "standby 3 at host:7: sending it the shard's state");
}

TEST(ReplicationStateTest, NoTransferBeginsToAStandbyThatIsNoLongerTheTarget) {
  for (uint64_t next : {0, 8}) {
    ReplicationState state = At(Stage::kNone);
    state.SetTarget(Target(next));
    EXPECT_FALSE(state.BeginTransfer(Target(7))) << next;
    EXPECT_EQ(Name(state.stage()), "none") << next;
  }
}

TEST(ReplicationStateTest, AReplacedStandbyIsNotLost) {
  for (uint64_t next : {0, 8}) {
    ReplicationState state = At(Stage::kMayTakeOver);
    state.SetTarget(Target(next));
    EXPECT_EQ(Describe(state.OnStreamEnd(Target(7), absl::CancelledError("cancelled"))),
              "clear; release 6; standby 3 at host:7: stopped following: cancelled; report");
    EXPECT_EQ(Name(state.stage()), "none") << next;
    EXPECT_EQ(state.HasTarget(), next == 8);
  }
}

TEST(ReplicationStateTest, TheNextStandbyAcknowledgesFromTheStart) {
  ReplicationState state = At(Stage::kMayTakeOver);
  state.SetTarget(Target(8));
  state.OnStreamEnd(Target(7), absl::OkStatus());
  state.TakeTarget();
  EXPECT_TRUE(state.BeginTransfer(Target(8)));
  state.OnResponse(0, true, absl::Seconds(1));
  EXPECT_EQ(Name(state.stage()), "closing up");
  EXPECT_EQ(state.WaitOf(4), Wait::kAcknowledgment);
}

TEST(ReplicationStateTest, ATimeoutIsTheReasonWhateverEndsTheStream) {
  ReplicationState state = At(Stage::kMayTakeOver);
  state.OnTime(absl::Milliseconds(6700));
  state.OnStreamEnd(Target(7), absl::CancelledError("cancelled"));
  EXPECT_EQ(state.Report().reason(), "timed out after 6s waiting for it to process data");
}

TEST(ReplicationStateTest, ANewStreamHasItsOwnReason) {
  ReplicationState state = At(Stage::kLost);
  state.SetTarget(Target(8));
  state.TakeTarget();
  state.OnOpen(Target(8));
  state.OnStreamEnd(Target(8), absl::CancelledError("cancelled"));
  EXPECT_EQ(state.Report().reason(), "cancelled");
}

TEST(ReplicationStateTest, AStreamThatDoesNotOpenHasItsOwnReason) {
  ReplicationState state = At(Stage::kLost);
  state.SetTarget(Target(8));
  state.TakeTarget();
  state.OnStreamEnd(Target(8), absl::UnavailableError("no route"));
  EXPECT_EQ(state.Report().reason(), "no route");
}

TEST(ReplicationStateTest, ATargetThatIsWithdrawnBeforeItIsTakenIsNotFollowed) {
  ReplicationState state(3, absl::Seconds(5));
  state.BeginJob();
  state.BeginServing(1);
  state.SetTarget(Target(7));
  EXPECT_TRUE(state.HasTarget());
  state.SetTarget(Target(0));
  EXPECT_FALSE(state.HasTarget());
}

TEST(ReplicationStateTest, AStandbyMayEndTheStream) {
  ReplicationState state = At(Stage::kCatchingUp);
  state.OnStreamEnd(Target(7), absl::OkStatus());
  EXPECT_EQ(state.Report().reason(), "the standby ended the stream");
}

TEST(ReplicationStateTest, TheFirstReasonToCloseCounts) {
  ReplicationState state = At(Stage::kInStep);
  state.Close(absl::UnavailableError("first"));
  EXPECT_EQ(Describe(state.Close(absl::UnavailableError("second"))), "release held back; release 6; first");
  EXPECT_EQ(state.closed().message(), "first");
}

}  // namespace
}  // namespace ballast
