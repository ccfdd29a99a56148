// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/child_program.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(ChildProgramTest, IsHeardToItsEnd) {
  auto program = ChildProgram::Start({"/bin/sh", "-c", "echo one; echo two >&2; exit 3"});
  ASSERT_TRUE(program.ok());
  const auto end = program->HearToEnd(absl::Seconds(60));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->number, 3);
  EXPECT_EQ(program->said(), "one\ntwo\n");
  EXPECT_EQ(program->LastWords(), "; it said: one\ntwo");
}

TEST(ChildProgramTest, IsNotWaitedForLongerThanAsked) {
  auto program = ChildProgram::Start({"/bin/sh", "-c", "echo started; exec sleep 600"});
  ASSERT_TRUE(program.ok());
  const auto end = program->HearToEnd(absl::Milliseconds(200));
  EXPECT_EQ(end.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(end.status().message()), HasSubstr("timed out after 200ms waiting for process "));
}

TEST(ChildProgramTest, WhoseOutputIsClosedIsStillWaitedFor) {
  auto program = ChildProgram::Start({"/bin/sh", "-c", "exec >&- 2>&-; exec sleep 600"});
  ASSERT_TRUE(program.ok());
  EXPECT_EQ(program->HearToEnd(absl::Milliseconds(200)).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ChildProgramTest, ThatIsNotThereIsNamed) {
  EXPECT_THAT(std::string(ChildProgram::Start({"/nonexistent/program"}).status().message()),
              HasSubstr("/nonexistent/program"));
}

}  // namespace
}  // namespace ballast
