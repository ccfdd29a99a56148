// SPDX-License-Identifier: Apache-2.0
#include "common/trace/trace_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/text/json_fields.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

absl::Time At(int64_t microseconds) { return absl::FromUnixSeconds(1700000000) + absl::Microseconds(microseconds); }

class TraceFileTest : public ::testing::Test {
 protected:
  void Add(TimelineRow row, absl::string_view name, int64_t begin, int64_t end) {
    timeline_.Add({.row = row, .begin = At(begin), .end = At(end), .step = 1}, name);
  }

  static CallSpan Call(int64_t begin, int64_t end) {
    CallSpan call;
    call.method = "/ballast.v1.ParameterService/Push";
    call.context = {.trace_high = 1, .trace_low = 2, .span = 7, .sampled = true};
    call.parent = 9;
    call.begin = At(begin);
    call.end = At(end);
    call.code = absl::StatusCode::kUnavailable;
    call.peer = 3;
    call.step = 5;
    call.request_bytes = 64;
    call.response_bytes = 8;
    return call;
  }

  Json Events(uint32_t rank = 0) { return Parse(WorkerTraceJson(timeline_.Copy(), {}, rank, "cpu")); }

  static Json Parse(const std::string& text) {
    const absl::StatusOr<Json> object = ParseJsonObject(text);
    EXPECT_TRUE(object.ok()) << object.status();
    return object.ok() ? object->at("traceEvents") : Json::array();
  }

  // Returns "ROW: NAME BEGIN+DURATION" for each span.
  static std::vector<std::string> Spans(const Json& events) {
    std::map<int, std::string> rows;
    std::vector<std::string> spans;
    for (const Json& event : events) {
      if (event["name"] == "thread_name") rows[event["tid"].get<int>()] = event["args"]["name"].get<std::string>();
    }
    for (const Json& event : events) {
      if (event["ph"] != "X") continue;
      spans.push_back(rows[event["tid"].get<int>()] + ": " + event["name"].get<std::string>() + " " +
                      event["ts"].dump() + "+" + event["dur"].dump());
    }
    return spans;
  }

  TimelineRecorder timeline_{StepRange{1, 10}};
};

TEST_F(TraceFileTest, SpansStandInTheirRowsInMicrosecondsFromTheFirst) {
  Add(TimelineRow::kCompute, "forward fc", 100, 150);
  Add(TimelineRow::kPush, "fc", 120, 300);
  Add(TimelineRow::kSteps, "step", 90, 400);
  EXPECT_THAT(Spans(Events()),
              ElementsAre("steps: step 0.0+310.0", "compute: forward fc 10.0+50.0", "push: fc 30.0+180.0"));
}

TEST_F(TraceFileTest, ProcessIsNamedAfterTheWorkerAndEachRowHasItsName) {
  const Json events = Events(3);
  EXPECT_EQ(events[0]["name"], "process_name");
  EXPECT_EQ(events[0]["args"]["name"], "worker 3");
  std::vector<std::string> rows;
  for (const Json& event : events) {
    EXPECT_EQ(event["pid"], 4);
    if (event["name"] == "thread_name") rows.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(rows, ElementsAre("steps", "compute", "copies", "push", "pull", "wait"));
}

TEST_F(TraceFileTest, AGpuHasItsRowIfItWasTimed) {
  Add(TimelineRow::kGpu, "forward fc", 110, 140);
  Add(TimelineRow::kCompute, "forward fc", 100, 105);
  EXPECT_THAT(Spans(Events()), ElementsAre("compute: forward fc 0.0+5.0", "gpu: forward fc 10.0+30.0"));
}

TEST_F(TraceFileTest, OverlappingSpansOfARowGetRowsOfTheirOwn) {
  Add(TimelineRow::kPush, "c", 0, 100);
  Add(TimelineRow::kPush, "b", 50, 150);
  Add(TimelineRow::kPush, "a", 100, 200);
  EXPECT_THAT(Spans(Events()), ElementsAre("push: c 0.0+100.0", "push 2: b 50.0+100.0", "push: a 100.0+100.0"));
}

TEST_F(TraceFileTest, SpanWithinAnotherStaysInItsRow) {
  Add(TimelineRow::kWait, "inner", 10, 20);
  Add(TimelineRow::kWait, "outer", 10, 40);
  EXPECT_THAT(Spans(Events()), ElementsAre("wait: outer 0.0+30.0", "wait: inner 0.0+10.0"));
}

TEST_F(TraceFileTest, MergedProcessesShareOneAxis) {
  Add(TimelineRow::kCompute, "early", 0, 10);
  const std::string early = WorkerTraceJson(timeline_.Copy(), {}, 0, "cpu");
  TimelineRecorder other(StepRange{1, 10});
  other.Add({.row = TimelineRow::kCompute, .begin = At(7), .end = At(9)}, "late");
  const std::string late = WorkerTraceJson(other.Copy(), {}, 1, "cpu");
  const MergedTrace merged = MergeTraces({late, early}).value();
  EXPECT_THAT(Spans(Parse(merged.json)), ElementsAre("compute: late 7.0+2.0", "compute: early 0.0+10.0"));
  EXPECT_EQ(ParseJsonObject(merged.json)->at("otherData")["workers"].size(), 2);
}

TEST_F(TraceFileTest, WorkerWithoutSpansMovesNobody) {
  Add(TimelineRow::kCompute, "only", 5, 10);
  const std::string one = WorkerTraceJson(timeline_.Copy(), {}, 0, "cpu");
  const std::string none = WorkerTraceJson(TimelineRecorder(StepRange{1, 1}).Copy(), {}, 1, "cpu");
  EXPECT_THAT(Spans(Parse(MergeTraces({none, one})->json)), ElementsAre("compute: only 0.0+5.0"));
}

TEST_F(TraceFileTest, CallsThatOverlapHaveRowsOfTheirOwnWithTheirPhases) {
  CallTimeline::Recording recording;
  recording.calls = {Call(20, 90), Call(0, 100)};
  recording.calls[1].parts = {{"queue", At(5), At(10)}, {"apply", At(10), At(95)}};
  EXPECT_THAT(Spans(Parse(ServerTraceJson(recording, 1))),
              ElementsAre("calls: ballast.v1.ParameterService/Push 0.0+100.0", "calls: queue 5.0+5.0",
                          "calls: apply 10.0+85.0", "calls 2: ballast.v1.ParameterService/Push 20.0+70.0"));
}

TEST_F(TraceFileTest, CallHasTheNamesOfOpenTelemetryAndItsPlaceInTheTrace) {
  CallTimeline::Recording recording;
  recording.calls = {Call(0, 100)};
  const std::string text = ServerTraceJson(recording, 1);
  EXPECT_EQ(ParseJsonObject(text)->at("otherData")["servers"][0].dump(), R"({"rank":1,"calls":1,"left_out":0})");
  const Json events = Parse(text);
  EXPECT_EQ(events[0]["args"]["name"], "server 1");
  const auto span = std::find_if(events.begin(), events.end(), [](const Json& event) { return event["ph"] == "X"; });
  ASSERT_NE(span, events.end());
  EXPECT_EQ((*span)["args"].dump(),
            R"({"rpc.system":"grpc","rpc.service":"ballast.v1.ParameterService","rpc.method":"Push",)"
            R"("rpc.grpc.status_code":14,"trace_id":"00000000000000010000000000000002",)"
            R"("span_id":"0000000000000007","parent_span_id":"0000000000000009","worker":3,"step":5,)"
            R"("request_bytes":64,"response_bytes":8})");
}

TEST_F(TraceFileTest, AnArrowLeadsFromTheWorkersCallToTheServers) {
  CallTimeline::Recording server, worker;
  server.calls = {Call(10, 90)};
  worker.calls = {Call(0, 100)};
  worker.calls[0].context.span = 9;
  const MergedTrace merged =
      MergeTraces({WorkerTraceJson(timeline_.Copy(), worker, 0, "cpu"), ServerTraceJson(server, 0)}).value();
  std::map<std::string, Json> arrows;
  for (const Json& event : Parse(merged.json)) {
    if (event["name"] == "message") arrows[event["ph"].get<std::string>()] = event;
  }
  ASSERT_EQ(arrows.size(), 2u);
  EXPECT_EQ(arrows["s"]["id"], "0000000000000009");
  EXPECT_EQ(arrows["f"]["id"], "0000000000000009");
  EXPECT_EQ(arrows["s"]["ts"], 0.0);
  EXPECT_EQ(arrows["f"]["ts"], 10.0);
  EXPECT_NE(arrows["s"]["pid"], arrows["f"]["pid"]);
}

TEST_F(TraceFileTest, ServerAndItsStandbyStayTwoProcesses) {
  CallTimeline::Recording calls;
  calls.calls = {Call(0, 10)};
  const std::string one = ServerTraceJson(calls, 2);
  std::set<int> processes;
  for (const Json& event : Parse(MergeTraces({one, one, one})->json)) processes.insert(event["pid"].get<int>());
  EXPECT_EQ(processes.size(), 3u);
}

TEST_F(TraceFileTest, MergeRefusesWhatIsNoTrace) {
  for (const char* text : {"", "[]", "{}", R"({"otherData":{},"traceEvents":[]})",
                           R"({"otherData":{"origin_ns":1,"workers":[7]},"traceEvents":[]})",
                           R"({"otherData":{"origin_ns":1,"workers":[],"servers":7},"traceEvents":[]})",
                           R"({"otherData":{"origin_ns":1,"workers":[],"servers":[{}]},"traceEvents":[]})",
                           R"({"otherData":{"origin_ns":1,"workers":[{}]},"traceEvents":[]})",
                           R"({"otherData":{"origin_ns":1,"workers":[]},"traceEvents":[7]})"}) {
    EXPECT_EQ(MergeTraces({text}).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST_F(TraceFileTest, FileAndWarningSayWhatWasLeftOut) {
  TimelineRecorder timeline(StepRange{1, 200}, Clock::Real(), /*most_spans=*/1);
  EXPECT_EQ(LeftOutText(timeline.Copy(), {}), "");
  for (int i = 0; i < 3; ++i) timeline.Add({.begin = At(i), .end = At(i)}, "x");
  EXPECT_EQ(
      LeftOutText(timeline.Copy(), {}),
      "2 spans and 0 calls left out of the timeline, which holds 1 and 0; choose fewer steps (--trace_steps 1-100)");
  const absl::StatusOr<Json> object = ParseJsonObject(WorkerTraceJson(timeline.Copy(), {}, 0, "cpu"));
  EXPECT_EQ(object->at("otherData")["workers"][0]["left_out"], 2);
  const std::string text = WorkerTraceJson(timeline.Copy(), {}, 0, "cpu");
  EXPECT_EQ(MergeTraces({text, text})->left_out, 4);
}

TEST_F(TraceFileTest, PathThatCannotBeWrittenIsRefused) {
  EXPECT_EQ(CheckTracePath("").message(), "--trace: cannot write \"\": want a file name");
  EXPECT_EQ(CheckTracePath("/nonexistent/t.json").message(),
            "--trace: cannot write \"/nonexistent/t.json\": No such file or directory");
  EXPECT_EQ(CheckTracePath(::testing::TempDir()).message(),
            "--trace: cannot write \"" + ::testing::TempDir() + "\": it is a directory");
  EXPECT_THAT(std::string(CheckTracePath("/dev/null").message()), HasSubstr("it is not a regular file"));
}

TEST_F(TraceFileTest, CheckOfAPathLeavesNothingBehind) {
  const std::string folder = ::testing::TempDir() + "/trace_file_test_check";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(CheckTracePath(folder + "/t.json").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace ballast
