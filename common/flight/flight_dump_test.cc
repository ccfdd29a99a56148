// SPDX-License-Identifier: Apache-2.0
#include "common/flight/flight_dump.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

FlightDump Example() {
  FlightDump dump{.process = "worker 3",
                  .pid = 42,
                  .version = "0.1.0",
                  .reason = "a \"reason\"\nof two lines",
                  .time = absl::FromUnixMicros(1764115200123456)};
  dump.recorded.overwritten = 12;
  dump.recorded.tensors[7] = "fc/weight";
  dump.recorded.events = {{.time = absl::FromUnixMicros(1764115200000001),
                           .activity = FlightActivity::kPushPull,
                           .peer = 1,
                           .step = 812,
                           .tensor = 7,
                           .slice = 2,
                           .amount = 4},
                          {.time = absl::FromUnixMicros(1764115200000002),
                           .activity = FlightActivity::kWait,
                           .edge = FlightEdge::kEnd,
                           .code = absl::StatusCode::kDeadlineExceeded}};
  return dump;
}

TEST(FlightDumpTest, ReadsWhatItWrote) {
  const FlightDump want = Example();
  const absl::StatusOr<FlightDump> got = ParseFlightDump(FlightDumpText(want));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->process, want.process);
  EXPECT_EQ(got->pid, want.pid);
  EXPECT_EQ(got->reason, want.reason);
  EXPECT_EQ(got->time, want.time);
  EXPECT_EQ(got->recorded.events, want.recorded.events);
  EXPECT_EQ(got->recorded.tensors, want.recorded.tensors);
  EXPECT_EQ(got->recorded.overwritten, 12);
  EXPECT_FALSE(got->cut_off);
}

// Wherever a file ends, its whole lines are read, and the reader says that some are missing.
TEST(FlightDumpTest, ReadsTheWholeLinesOfAFileThatWasCutOff) {
  const std::string text = FlightDumpText(Example());
  const size_t first_line = text.find('\n') + 1;
  for (size_t length = 0; length < text.size(); ++length) {
    const absl::StatusOr<FlightDump> got = ParseFlightDump(text.substr(0, length));
    EXPECT_EQ(got.ok(), length >= first_line) << length;
    if (got.ok()) EXPECT_TRUE(got->cut_off) << length;
  }
}

TEST(FlightDumpTest, NamesTheLineThatIsNoEvent) {
  const std::string text = FlightDumpText(Example());
  EXPECT_THAT(ParseFlightDump(text + "{\"what\":\"dance\"}\n").status().message(),
              HasSubstr("line 4 of the flight dump: got \"dance\""));
  EXPECT_THAT(ParseFlightDump(text + "[1]\n").status().message(), HasSubstr("line 4"));
  EXPECT_THAT(ParseFlightDump("{}\n").status().message(), HasSubstr("ballast-flight-1"));
  EXPECT_FALSE(ParseFlightDump("").ok());
}

TEST(FlightDumperTest, WritesTheNewestEventsWhenAsked) {
  const std::string folder = ::testing::TempDir() + "/flight_dumper_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  FlightDumper::Request("nobody hears this");
  FlightRecorder::OfProcess().Add({.activity = FlightActivity::kStep, .step = 99});
  {
    FlightDumper dumper(folder, "server 0");
    FlightDumper::Request("the wait timed out");
  }
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(folder, "/flight-server-0-", getpid(), ".jsonl"));
  ASSERT_TRUE(text.ok()) << text.status();
  const absl::StatusOr<FlightDump> dump = ParseFlightDump(*text);
  ASSERT_TRUE(dump.ok()) << dump.status();
  EXPECT_EQ(dump->reason, "the wait timed out");
  EXPECT_EQ(dump->process, "server 0");
  EXPECT_EQ(dump->recorded.events.back().step, 99);
}

TEST(FlightDumperTest, ADiskThatIsFullEndsNothing) {
  FlightDumper dumper("/dev/null/no-directory", "server 0");
  FlightDumper::Request("why not");
}

TEST(FlightDumperTest, QuitIsForADirectoryOnly) {
  EXPECT_EQ(DumpAtQuit(""), nullptr);
  EXPECT_NE(DumpAtQuit("logs"), nullptr);
}

}  // namespace
}  // namespace ballast
