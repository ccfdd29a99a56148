// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/child_server.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

// Runs a script whose $1 is the address file.
absl::StatusOr<ChildServer> Start(const std::string& script) {
  const absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
  if (!folder.ok()) return folder.status();
  return ChildServer::Start({"/bin/sh", "-c", script}, *folder);
}

TEST(ChildServerTest, HasTheAddressThatItWrote) {
  const auto server = Start("echo 127.0.0.1:1 > \"$1.new\"; mv \"$1.new\" \"$1\"; exec sleep 600");
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->address(), "127.0.0.1:1");
}

TEST(ChildServerTest, ThatExitsAtOnceIsReportedWithItsStatusAndLastLines) {
  const absl::Status status = Start("echo starting; echo 'error: no port' >&2; exit 3").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "/bin/sh ended with status 3; it said: starting\nerror: no port");
}

TEST(ChildServerTest, ThatIsKilledAtOnceIsReportedWithTheSignal) {
  EXPECT_EQ(Start("kill -KILL $$").status().message(), "/bin/sh was killed by signal 9 (SIGKILL)");
}

// Reads 256 MiB of shared memory that it may not write, as a server reads its clients' gradients.
TEST(ChildServerTest, UsesNoMemoryThatItOnlyReads) {
  const auto server = Start(R"(exec /usr/bin/python3 -c '
import mmap, os, sys, time
file = os.memfd_create("client")
os.ftruncate(file, 256 << 20)
memory = mmap.mmap(file, 256 << 20, mmap.MAP_SHARED, mmap.PROT_READ)
sum(memory[i] for i in range(0, len(memory), mmap.PAGESIZE))
with open(sys.argv[1] + ".new", "w") as address: address.write("127.0.0.1:1\n")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)' "$1")");
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_GT(server->PeakMemoryBytes(), uint64_t{1} << 20);
  EXPECT_LT(server->PeakMemoryBytes(), uint64_t{128} << 20);
}

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
