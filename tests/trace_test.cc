// SPDX-License-Identifier: Apache-2.0
// Timelines written by `ballast launch --trace` with real servers and workers.
#include <cmath>
#include <cstdint>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;
using Json = nlohmann::json;

// Times in nanoseconds since the Unix epoch.
struct Span {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t step = 0;
  Json args;
};

struct Trace {
  // Keyed like "worker 0/push".
  std::map<std::string, std::vector<Span>> rows;
  std::set<std::string> names;
  // Ids of the arrows, by the end that an event is: "s" or "f".
  std::map<std::string, std::set<std::string>> arrows;
};

class TraceTest : public JobTest {
 protected:
  Trace ReadTrace(const std::string& name = "trace.json") const {
    Trace trace;
    const Json object = Json::parse(Read(name), nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(object.is_object()) << Read(name).substr(0, 200);
    if (!object.is_object()) return trace;
    const int64_t origin = object["otherData"]["origin_ns"].get<int64_t>();
    std::map<int, std::string> processes;
    std::map<std::pair<int, int>, std::string> threads;
    for (const Json& event : object["traceEvents"]) {
      const int process = event["pid"].get<int>();
      if (event["name"] == "process_name") processes[process] = event["args"]["name"];
      if (event["name"] == "thread_name") threads[{process, event["tid"].get<int>()}] = event["args"]["name"];
    }
    for (const Json& event : object["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const int process = event["pid"].get<int>();
      const int64_t begin = origin + std::llround(event["ts"].get<double>() * 1000);
      const int64_t end = begin + std::llround(event["dur"].get<double>() * 1000);
      trace.names.insert(event["name"]);
      trace.rows[absl::StrCat(processes[process], "/", threads[{process, event["tid"].get<int>()}])].push_back(
          {event["name"], begin, end, event["args"]["step"].get<int64_t>(), event["args"]});
    }
    for (const Json& event : object["traceEvents"]) {
      if (event["name"] == "message") trace.arrows[event["ph"]].insert(event["id"].get<std::string>());
    }
    return trace;
  }

  // Expects any two spans of a row to be nested or disjoint.
  static void ExpectNested(const std::string& row, std::vector<Span> spans) {
    std::sort(spans.begin(), spans.end(),
              [](const Span& a, const Span& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
    std::vector<const Span*> open;
    for (const Span& span : spans) {
      EXPECT_LE(span.begin, span.end) << row << ": " << span.name;
      while (!open.empty() && open.back()->end <= span.begin) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(span.end, open.back()->end) << row << ": " << span.name << " in " << open.back()->name;
      }
      open.push_back(&span);
    }
  }
};

TEST_F(TraceTest, LaunchLeavesARowForEachPartOfEachWorkersSteps) {
  WriteJob();
  const int64_t before = absl::GetCurrentTimeNanos();
  ChildProcess launch =
      Launch({"--workers", "2", "--servers", "2", "--trace", Path("trace.json"), "--trace-steps", "1-5"});
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
  const int64_t after = absl::GetCurrentTimeNanos();
  EXPECT_THAT(Read("out"), HasSubstr(absl::StrCat("timeline: ", Path("trace.json"), "\n")));
  const Trace trace = ReadTrace();
  for (const char* worker : {"worker 0", "worker 1"}) {
    for (const char* row : {"steps", "compute", "copies", "push", "pull"}) {
      EXPECT_TRUE(trace.rows.count(absl::StrCat(worker, "/", row))) << worker << " " << row;
    }
  }
  EXPECT_THAT(trace.names, IsSupersetOf({"batch", "forward dense1", "backward dense1", "backward relu1", "loss",
                                         "upload batch", "dense1 to dense2", "all weights"}));
  for (const auto& [row, spans] : trace.rows) {
    ExpectNested(row, spans);
    for (const Span& span : spans) {
      EXPECT_GE(span.begin, before) << row << ": " << span.name;
      EXPECT_LE(span.end, after) << row << ": " << span.name;
      // A pull waits for the update of the step before its own, or for that of the next one after its push.
      EXPECT_LE(span.step, 6) << row << ": " << span.name;
    }
  }
  EXPECT_EQ(trace.rows.at("worker 0/steps").size(), 5);
  EXPECT_FALSE(std::filesystem::exists(Path("run/logs/worker-0.trace.json")));
}

TEST_F(TraceTest, ComputationLiesWithinItsStepAndAPushBeginsAfterItsBackward) {
  WriteJob();
  ChildProcess launch = Launch({"--trace", Path("trace.json")});
  ASSERT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
  const Trace trace = ReadTrace();
  std::map<int64_t, Span> steps, backward;
  for (const Span& span : trace.rows.at("worker 0/steps")) {
    if (span.name == "batch") steps[span.step] = span;
  }
  // 157 examples in batches of 8, three times.
  EXPECT_EQ(steps.size(), 60);
  for (const Span& span : trace.rows.at("worker 0/compute")) {
    if (span.name != "backward dense1") continue;
    backward[span.step] = span;
    EXPECT_GE(span.begin, steps.at(span.step).begin);
    EXPECT_LE(span.end, steps.at(span.step).end);
  }
  int pushes = 0;
  for (const auto& [row, spans] : trace.rows) {
    if (!absl::StartsWith(row, "worker 0/push")) continue;
    for (const Span& span : spans) {
      if (span.name != "dense1 to dense2") continue;
      ++pushes;
      EXPECT_GE(span.begin, backward.at(span.step).end);
    }
  }
  EXPECT_EQ(pushes, 60);
}

TEST_F(TraceTest, ServersHaveTheCallsOfTheWorkersAndTheirPhases) {
  WriteJob();
  setenv("TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", 1);
  ChildProcess launch =
      Launch({"--workers", "2", "--servers", "2", "--trace", Path("trace.json"), "--trace-steps", "2-4"});
  unsetenv("TRACEPARENT");
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
  const Trace trace = ReadTrace();
  // By their id.
  std::map<std::string, Span> sent;
  std::map<std::string, int> parts;
  int received = 0;
  for (const auto& [row, spans] : trace.rows) {
    if (absl::StartsWith(row, "server ")) ExpectNested(row, spans);
    for (const Span& span : spans) {
      if (!span.args.contains("span_id")) {
        ++parts[span.name];
        continue;
      }
      EXPECT_THAT(span.name, AnyOf("ballast.v1.ParameterService/PushPull", "ballast.v1.ParameterService/Push",
                                   "ballast.v1.ParameterService/Pull"));
      EXPECT_EQ(span.args["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736") << "the launch's own trace";
      EXPECT_EQ(span.args["rpc.grpc.status_code"], 0);
      if (absl::StartsWith(row, "worker ")) {
        EXPECT_EQ(span.args["parent_span_id"], "00f067aa0ba902b7");
        sent[span.args["span_id"]] = span;
      }
    }
  }
  for (const auto& [row, spans] : trace.rows) {
    if (!absl::StartsWith(row, "server ")) continue;
    EXPECT_THAT(row, AnyOf(StartsWith("server 0/calls"), StartsWith("server 1/calls")));
    for (const Span& span : spans) {
      if (!span.args.contains("span_id")) continue;
      ++received;
      const auto parent = sent.find(span.args["parent_span_id"].get<std::string>());
      ASSERT_NE(parent, sent.end());
      EXPECT_EQ(parent->second.name, span.name);
      EXPECT_EQ(parent->second.step, span.step);
      EXPECT_EQ(parent->second.args["request_bytes"], span.args["request_bytes"]);
      EXPECT_EQ(parent->second.args["response_bytes"], span.args["response_bytes"]);
      EXPECT_GE(span.begin, parent->second.begin);
      EXPECT_LE(span.begin, parent->second.end);
    }
  }
  EXPECT_EQ(sent.size(), received);
  // Three steps of two workers, with at least a message to one server each.
  EXPECT_GE(received, 6);
  for (const char* phase : {"queue", "apply", "wait", "send"}) EXPECT_GE(parts[phase], received) << phase;
  EXPECT_EQ(trace.arrows.at("s"), trace.arrows.at("f"));
  EXPECT_EQ(trace.arrows.at("s").size(), received);
  EXPECT_FALSE(std::filesystem::exists(Path("run/logs/server-0.trace.json")));
}

TEST_F(TraceTest, AFailedRunLeavesOneToo) {
  WriteJob({{"learning_rate: 0.2", "learning_rate: 1e30"}});
  ChildProcess launch = Launch({"--workers", "2", "--trace", Path("trace.json")});
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 1");
  EXPECT_THAT(launch.last_line(), StartsWith("error: "));
  EXPECT_TRUE(ReadTrace().rows.count("worker 0/compute"));
}

TEST_F(TraceTest, AnInterruptedRunLeavesOneToo) {
  WriteEndlessJob();
  ChildProcess launch = Launch({"--trace", Path("trace.json"), "--verbose"});
  ASSERT_TRUE(launch.AwaitOutput(kUnderWay)) << launch.output();
  launch.Signal(SIGINT);
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 130") << launch.output();
  EXPECT_TRUE(ReadTrace().rows.count("worker 0/compute"));
}

TEST_F(TraceTest, LaunchRefusesAPathThatCannotBeWrittenBeforeItStarts) {
  WriteJob();
  const std::string cases[] = {Path("none/trace.json"), folder_, "/dev/null", ""};
  for (const std::string& path : cases) {
    ChildProcess launch = Launch({"--trace", path});
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 2") << path;
    EXPECT_THAT(launch.last_line(), StartsWith(absl::StrCat("error: --trace: cannot write \"", path, "\": ")));
    EXPECT_FALSE(std::filesystem::exists(Path("run"))) << path;
  }
}

TEST_F(TraceTest, WorkerRefusesAPathThatCannotBeWrittenBeforeItJoins) {
  WriteJob();
  ChildProcess worker({Binary("worker/ballast_worker"), "--job", Path("job.textproto"), "--device", "cpu", "--trace",
                       Path("none/trace.json")});
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 2");
  EXPECT_THAT(worker.last_line(), HasSubstr("none/trace.json\": No such file or directory"));
}

TEST_F(TraceTest, TraceparentThatIsNoneIsRefused) {
  WriteJob();
  ChildProcess worker({Binary("worker/ballast_worker"), "--job", Path("job.textproto"), "--device", "cpu", "--trace",
                       Path("trace.json"), "--traceparent", "7"});
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 2");
  EXPECT_THAT(worker.last_line(), StartsWith("error: --traceparent: got \"7\", want "));
  ChildProcess server({Binary("server/ballast_server"), "--trace", Path("none/trace.json")});
  EXPECT_EQ(server.Wait().ToString(), "ended with status 2");
  EXPECT_THAT(server.last_line(), HasSubstr("none/trace.json\": No such file or directory"));
}

TEST_F(TraceTest, StepsThatAreNoRangeAreRefused) {
  WriteJob();
  ChildProcess launch = Launch({"--trace", Path("trace.json"), "--trace-steps", "9-3"});
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 2");
  EXPECT_EQ(launch.last_line(),
            "error: flag --trace-steps: got \"9-3\", want the first and the last step, from 1, as in 1-200");
  ChildProcess alone = Launch({"--trace-steps", "1-3"});
  EXPECT_EQ(alone.Wait().ToString(), "ended with status 2");
  EXPECT_EQ(alone.last_line(), "error: flag --trace-steps: requires --trace");
  ChildProcess worker({Binary("worker/ballast_worker"), "--job", Path("job.textproto"), "--trace_steps", "x"});
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 2");
  EXPECT_THAT(worker.last_line(), StartsWith("error: --trace_steps: got \"x\", want "));
}

}  // namespace
}  // namespace ballast
