// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_conclusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "cli/launch/job_launch.h"
#include "common/storage/file.h"
#include "common/trace/trace_file.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class JoinTracesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    run_ = ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(run_);
    std::filesystem::create_directories(run_ + "/logs");
  }

  // Writes a timeline with one span; with `most_spans` 0 the span is left out.
  void Leave(int rank, size_t most_spans = 10) {
    TimelineRecorder timeline(StepRange{1, 10}, Clock::Real(), most_spans);
    timeline.Add({.begin = absl::Now(), .end = absl::Now()}, "batch");
    ASSERT_TRUE(
        WriteFileAtomically(WorkerTracePath(run_, rank), {WorkerTraceJson(timeline.Copy(), {}, rank, "cpu")}).ok());
  }

  void LeaveServer(int rank, bool standby = false) {
    CallTimeline calls;
    ASSERT_TRUE(WriteFileAtomically(ServerTracePath(run_, rank, standby), {ServerTraceJson(calls.Copy(), rank)}).ok());
  }

  void Join(int workers, const std::string& path) {
    plan_.run_dir = run_;
    plan_.workers = workers;
    JoinTraces(plan_, path, out_, err_);
  }

  std::string run_;
  LaunchPlan plan_ = {.servers = 0};
  std::ostringstream out_, err_;
};

TEST_F(JoinTracesTest, OneFileTakesThePlaceOfTheWorkers) {
  Leave(0);
  Leave(1);
  Join(2, run_ + "/trace.json");
  EXPECT_EQ(out_.str(), "timeline: " + run_ + "/trace.json\n");
  EXPECT_EQ(err_.str(), "");
  const std::string text = ReadFile(run_ + "/trace.json").value();
  EXPECT_THAT(text, HasSubstr("\"worker 0\""));
  EXPECT_THAT(text, HasSubstr("\"worker 1\""));
  EXPECT_TRUE(std::filesystem::is_empty(run_ + "/logs"));
}

TEST_F(JoinTracesTest, WorkerThatLeftNoneIsNamedAndTheOthersAreJoined) {
  Leave(1);
  Join(2, run_ + "/trace.json");
  EXPECT_THAT(err_.str(), HasSubstr("warning: worker 0 left no timeline: "));
  EXPECT_THAT(ReadFile(run_ + "/trace.json").value(), HasSubstr("\"worker 1\""));
}

TEST_F(JoinTracesTest, ServersAndTheirStandbysAreInIt) {
  Leave(0);
  LeaveServer(0);
  LeaveServer(0, /*standby=*/true);
  LeaveServer(1);
  plan_.servers = 2;
  plan_.durability.set_mode(v1::Durability::STANDBY);
  Join(1, run_ + "/trace.json");
  EXPECT_THAT(err_.str(), HasSubstr("warning: standby 1 left no timeline: "));
  const std::string text = ReadFile(run_ + "/trace.json").value();
  EXPECT_THAT(text, HasSubstr("\"server 0\""));
  EXPECT_THAT(text, HasSubstr("\"server 1\""));
  EXPECT_TRUE(std::filesystem::is_empty(run_ + "/logs"));
}

TEST_F(JoinTracesTest, NothingIsWrittenWhereNobodyLeftOne) {
  Join(1, run_ + "/trace.json");
  EXPECT_EQ(out_.str(), "");
  EXPECT_FALSE(std::filesystem::exists(run_ + "/trace.json"));
}

TEST_F(JoinTracesTest, WhatWasLeftOutIsTold) {
  Leave(0, 0);
  Join(1, run_ + "/trace.json");
  EXPECT_THAT(err_.str(), HasSubstr("the timeline had no room for 1 spans; choose fewer steps"));
}

TEST_F(JoinTracesTest, PathThatBecameUnwritableLeavesTheWorkersOwn) {
  Leave(0);
  Join(1, "/nonexistent/trace.json");
  EXPECT_THAT(err_.str(), HasSubstr("warning: cannot merge the timelines: "));
  EXPECT_EQ(out_.str(), "");
  EXPECT_TRUE(std::filesystem::exists(WorkerTracePath(run_, 0)));
}

}  // namespace
}  // namespace ballast
