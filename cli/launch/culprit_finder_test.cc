// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/culprit_finder.h"

#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

v1::JobFailure FailureOf(uint64_t process_id) {
  v1::JobFailure failure;
  failure.mutable_member()->set_role(v1::ROLE_WORKER);
  failure.set_process(process_id);
  return failure;
}

TEST(CulpritFinderTest, BlamesTheAccusedIfItFailedOtherwiseTheFirst) {
  const struct {
    const char* what;
    std::vector<int> failures;
    v1::JobFailure failure;
    std::optional<int> accused;
    int culprit;
  } cases[] = {
      {"the accused failed first", {2, 1}, FailureOf(102), 2, 2},
      {"the accused failed last", {0, 1, 2}, FailureOf(102), 2, 2},
      {"the accused never ended", {1, 0}, FailureOf(102), 2, 1},
      {"the accused is not of this run", {1, 0}, FailureOf(104), std::nullopt, 1},
      {"no member is at fault", {1, 0}, v1::JobFailure(), std::nullopt, 1},
      {"the id was assigned twice", {0, 3}, FailureOf(100), 3, 3},
  };
  for (const auto& [what, failures, failure, accused, culprit] : cases) {
    CulpritFinder finder;
    EXPECT_FALSE(finder.failed()) << what;
    for (int process : failures) finder.AddFailure(process);
    EXPECT_TRUE(finder.failed()) << what;
    EXPECT_EQ(finder.Culprit(), failures[0]) << what << ": nobody is accused yet";
    EXPECT_EQ(finder.Accuse(failure, {100, 101, 102, 100}), accused) << what;
    EXPECT_EQ(finder.Culprit(), culprit) << what;
  }
}

TEST(CulpritFinderTest, TakesAFailureThatFollowsTheAccusation) {
  CulpritFinder finder;
  finder.AddFailure(0);
  EXPECT_EQ(finder.Accuse(FailureOf(101), {100, 101}), 1);
  EXPECT_EQ(finder.Culprit(), 0);
  finder.AddFailure(1);
  EXPECT_EQ(finder.Culprit(), 1);
}

TEST(CulpritFinderTest, ReportsExitStatusAndError) {
  const struct {
    ExitStatus end;
    std::string last_error;
    int exit_status;
    const char* error;
  } cases[] = {
      {{false, 1}, "loss is NaN", 1, "worker 1 (process 42) ended with status 1: loss is NaN"},
      {{false, 2}, "no such file", 2, "worker 1 (process 42) ended with status 2: no such file"},
      {{false, 75}, "server 7 is missing", 75, "worker 1 (process 42) ended with status 75: server 7 is missing"},
      {{false, 3}, "", 1, "worker 1 (process 42) ended with status 3"},
      {{false, 130}, "", 1, "worker 1 (process 42) ended with status 130"},
      {{false, 0}, "", 1, "worker 1 (process 42) ended with status 0 before the job was done"},
      {{true, SIGKILL}, "", 1, "worker 1 (process 42) was killed by signal 9 (SIGKILL)"},
      {{true, SIGINT}, "", 1, "worker 1 (process 42) was killed by signal 2 (SIGINT)"},
  };
  for (const auto& [end, last_error, exit_status, error] : cases) {
    const FailureReport report =
        ReportFailure({.name = "worker 1", .process_id = 42, .end = end, .last_error = last_error});
    EXPECT_EQ(report.exit_status, exit_status) << error;
    EXPECT_EQ(report.error, error);
  }
}

TEST(CulpritFinderTest, ReportsTheErrorOnce) {
  FailedProcess process = {.name = "worker 0", .end = {false, 2}, .log_path = "log", .last_error = "no such file"};
  process.last_lines = {"error: no such file"};
  EXPECT_THAT(ReportFailure(process).lines, ElementsAre("full log of worker 0: log"));
  process.last_lines = {"memory 1 MiB", "error: no such file"};
  EXPECT_THAT(ReportFailure(process).lines, ElementsAre("last lines of worker 0 (full log: log):", "  memory 1 MiB"));
}

TEST(CulpritFinderTest, ReportsTheLastLinesOfTheLog) {
  FailedProcess process = {.name = "server 0", .end = {true, SIGKILL}, .log_path = "run/logs/server-0.log"};
  EXPECT_THAT(ReportFailure(process).lines, ElementsAre("full log of server 0: run/logs/server-0.log"));
  process.last_lines = {"listens", "rank 7: about to die"};
  EXPECT_THAT(
      ReportFailure(process).lines,
      ElementsAre("last lines of server 0 (full log: run/logs/server-0.log):", "  listens", "  rank 7: about to die"));
}

}  // namespace
}  // namespace ballast
