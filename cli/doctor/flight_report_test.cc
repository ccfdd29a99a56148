// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/flight_report.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

absl::Time At(double seconds) { return absl::FromUnixSeconds(1764115200) + absl::Seconds(seconds); }

FlightDump Dump(const std::string& process, double time, std::vector<FlightEvent> events) {
  FlightDump dump{.process = process, .pid = 42, .version = "0.1.0", .reason = "SIGQUIT", .time = At(time)};
  dump.recorded.events = std::move(events);
  return dump;
}

// Worker 3 pushed step 811 and has waited for data since.
FlightDump Straggler() {
  return Dump("worker 3", 70,
              {{.time = At(1), .activity = FlightActivity::kPush, .peer = 0, .step = 811},
               {.time = At(1.5), .activity = FlightActivity::kPush, .edge = FlightEdge::kEnd, .peer = 0, .step = 811},
               {.time = At(2), .activity = FlightActivity::kData, .step = 812}});
}

FlightDump Server() {
  return Dump("server 0", 62,
              {{.time = At(1.4), .activity = FlightActivity::kPush, .edge = FlightEdge::kEnd, .peer = 3, .step = 811},
               {.time = At(62),
                .activity = FlightActivity::kMissing,
                .edge = FlightEdge::kEnd,
                .code = absl::StatusCode::kDeadlineExceeded,
                .peer = 3,
                .step = 812,
                .amount = 60000}});
}

TEST(FlightReportTest, NamesTheWorkerTheStepAndItsLastEvent) {
  const FlightReport report = MakeFlightReport({Server(), Straggler()});
  std::ostringstream out;
  Print(report, out);
  EXPECT_THAT(out.str(), HasSubstr("step 812: server 0 waited 1 min 0 s for worker 3, until 00:01:02.000 UTC\n"
                                   "    worker 3: began the wait for data of step 812, 1 min 0 s before\n"));
  EXPECT_THAT(out.str(), HasSubstr("worker 3, process 42, 00:01:10.000 UTC, 3 events: SIGQUIT\n"));
}

TEST(FlightReportTest, WithoutTheWorkersDumpTheServersSayWhatTheySawLast) {
  const FlightReport report = MakeFlightReport({Server()});
  ASSERT_THAT(report.waits, SizeIs(1));
  EXPECT_EQ(report.waits[0].last,
            "it left no dump; server 0 recorded that it ended push of worker 3 of step 811, 1 min 1 s before");
}

TEST(FlightReportTest, ShowsEachWorkerAndStepOnce) {
  FlightDump server = Server();
  server.recorded.events.push_back(server.recorded.events.back());
  EXPECT_THAT(MakeFlightReport({server, server}).waits, SizeIs(1));
}

class ReadFlightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(run_);
    std::filesystem::create_directories(run_ + "/logs");
  }
  void Write(const std::string& name, const std::string& text) { std::ofstream(run_ + "/logs/" + name) << text; }

  const std::string run_ = ::testing::TempDir() + "/flight_report_run";
};

TEST_F(ReadFlightsTest, SaysHowDumpsAreMadeIfThereIsNone) {
  EXPECT_THAT(ReadFlights(run_).status().message(), HasSubstr("kill -QUIT"));
}

TEST_F(ReadFlightsTest, ReadsADumpThatWasCutOffAndNamesWhatIsNone) {
  const std::string whole = FlightDumpText(Straggler());
  Write("flight-worker-3-42.jsonl", whole.substr(0, whole.size() - 20));
  Write("flight-server-0-7.jsonl", "garbage\n");
  Write("server-0.log", "not a dump\n");
  const absl::StatusOr<FlightReport> report = ReadFlights(run_);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_THAT(report->processes, SizeIs(1));
  EXPECT_TRUE(report->processes[0].dump.cut_off);
  EXPECT_EQ(report->processes[0].last, "ended push to shard 0 of step 811, 1 min 9 s before");
  EXPECT_THAT(report->unreadable, ElementsAre(AllOf(HasSubstr("flight-server-0-7.jsonl"), HasSubstr("line 1"))));
  EXPECT_EQ(ToJson(*report)["processes"][0]["cut_off"], true);
}

}  // namespace
}  // namespace ballast
