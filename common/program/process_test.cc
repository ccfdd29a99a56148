// SPDX-License-Identifier: Apache-2.0
#include "common/program/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "gtest/gtest.h"

namespace ballast {
namespace {

Process Shell(const std::string& script) { return Process::Start({"/bin/sh", "-c", script}).value(); }

// Reads the output until the child ends or closes it.
std::string ReadAll(const Process& process) {
  std::string text;
  char buffer[4096];
  pollfd waiting = {process.output(), POLLIN, 0};
  while (poll(&waiting, 1, 10000) == 1) {
    const ssize_t got = read(process.output(), buffer, sizeof(buffer));
    if (got <= 0) break;
    text.append(buffer, got);
  }
  return text;
}

// Blocks until the child has ended, and reaps it.
void Await(Process& process) {
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, process.pid(), &info, WEXITED | WNOWAIT), 0);
  ASSERT_TRUE(process.Reap());
}

TEST(ProcessTest, CarriesOutputAndErrorsInOrder) {
  auto process = Shell("echo one; echo two >&2; printf three");
  EXPECT_EQ(ReadAll(process), "one\ntwo\nthree");
}

TEST(ProcessTest, HasAnEmptyInput) {
  auto process = Shell("cat; echo end");
  EXPECT_EQ(ReadAll(process), "end\n");
}

TEST(ProcessTest, IfConnectedHasAnInputAndSeparateErrors) {
  auto process = Process::StartConnected({"/bin/sh", "-c", "read line; echo \"got $line\"; echo bad >&2; cat"}).value();
  ASSERT_EQ(write(process.input(), "one\ntwo\n", 8), 8);
  process.CloseInput();
  EXPECT_EQ(ReadAll(process), "got one\ntwo\n");
  char buffer[16];
  EXPECT_EQ(read(process.errors(), buffer, sizeof(buffer)), 4);
  EXPECT_EQ(std::string(buffer, 4), "bad\n");
  Await(process);
}

TEST(ProcessTest, SaysThatAHostWasLost) {
  EXPECT_EQ((ExitStatus{true, SIGKILL, true}).ToString(), "was lost with the connection to its host");
}

TEST(ProcessTest, SaysHowItEnded) {
  auto process = Shell("exit 3");
  Await(process);
  EXPECT_EQ(process.status()->ToString(), "ended with status 3");
  EXPECT_FALSE(process.status()->ok());
}

TEST(ProcessTest, SaysWhichSignalKilledIt) {
  auto process = Shell("exec tail -f /dev/null");
  EXPECT_FALSE(process.Reap());
  process.Signal(SIGKILL);
  Await(process);
  EXPECT_EQ(process.status()->ToString(), "was killed by signal 9 (SIGKILL)");
}

TEST(ProcessTest, SaysWhatCannotBeRun) {
  auto missing = Process::Start({"/nonexistent/ballast_server"});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("cannot run /nonexistent/ballast_server"), absl::string_view::npos);
  EXPECT_FALSE(Process::Start({"/dev/null"}).ok());
}

TEST(ProcessTest, InheritsNoIgnoredOrBlockedSignal) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  auto ignored = signal(SIGPIPE, SIG_IGN);
  auto blocker = Shell("kill -TERM $$; echo survived");
  auto ignorer = Shell("kill -PIPE $$; echo survived");
  signal(SIGPIPE, ignored);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(ReadAll(blocker), "");
  EXPECT_EQ(ReadAll(ignorer), "");
}

TEST(ProcessTest, InheritsNoOpenFile) {
  const int leak = dup(STDERR_FILENO);
  auto process = Shell("[ -e /proc/self/fd/" + std::to_string(leak) + " ] && echo open || echo closed");
  close(leak);
  EXPECT_EQ(ReadAll(process), "closed\n");
}

TEST(ProcessTest, KillsItsGroupWhenItGoesOutOfScope) {
  // The read end sees the end of the pipe only when the shell and its child have both ended.
  int output = -1;
  {
    auto process = Shell("tail -f /dev/null & echo started; wait");
    pollfd waiting = {process.output(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, 10000), 1);
    output = dup(process.output());
  }
  char buffer[64];
  EXPECT_EQ(read(output, buffer, sizeof(buffer)), 8);
  pollfd waiting = {output, POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 10000), 1);
  EXPECT_EQ(read(output, buffer, sizeof(buffer)), 0);
  close(output);
}

TEST(ProcessTest, SignalsNobodyOnceReaped) {
  auto process = Shell("exit 0");
  Await(process);
  errno = 0;
  process.Signal(SIGKILL);
  EXPECT_EQ(errno, 0) << "a kill was tried";
}

}  // namespace
}  // namespace ballast
