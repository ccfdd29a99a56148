// SPDX-License-Identifier: Apache-2.0
#include "common/program/line_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class LineWriterTest : public testing::Test {
 protected:
  LineWriterTest() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    reader_ = ends[0];
    file_ = ends[1];
    EXPECT_EQ(fcntl(file_, F_SETPIPE_SZ, 16384), 16384);
  }
  ~LineWriterTest() override {
    if (file_ >= 0) close(file_);
    close(reader_);
  }

  // Writes lines until the pipe takes no more; returns them.
  std::string FillPipe() {
    const int file = open(absl::StrCat("/proc/self/fd/", file_).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    const std::string line = std::string(255, 'y') + "\n";
    std::string all;
    while (write(file, line.data(), line.size()) > 0) all += line;
    close(file);
    return all;
  }

  // Reads until all writers have closed the pipe.
  std::string ReadToEnd() {
    close(std::exchange(file_, -1));
    std::string all;
    char buffer[1000];
    for (ssize_t count; (count = read(reader_, buffer, sizeof(buffer))) > 0;) all.append(buffer, count);
    return all;
  }

  int reader_ = -1;
  int file_ = -1;
};

// Reads from a pipe or the screen of a terminal until `text` comes, at most 10 s for each part of it.
std::string ReadUntil(int file, const std::string& text) {
  std::string all;
  char buffer[1000];
  pollfd waiting = {file, POLLIN, 0};
  while (all.find(text) == std::string::npos) {
    EXPECT_EQ(poll(&waiting, 1, 10'000), 1) << "after " << all.size() << " bytes";
    const ssize_t got = read(file, buffer, sizeof(buffer));
    EXPECT_GT(got, 0);
    if (got <= 0 || ::testing::Test::HasFailure()) break;
    all.append(buffer, got);
  }
  return all;
}

TEST_F(LineWriterTest, WritesLinesInTheirOrder) {
  {
    LineWriter lines(file_);
    for (int i = 0; i < 3; ++i) lines.Write(absl::StrCat("line ", i));
  }
  EXPECT_EQ(ReadToEnd(), "line 0\nline 1\nline 2\n");
}

TEST_F(LineWriterTest, DoesNotWaitForAReaderAndSaysWhatIsMissing) {
  const std::string fill = FillPipe();
  auto lines = std::make_unique<LineWriter>(file_, 10'000);
  // Ten times the capacity of the writer.
  const int count = 1400;
  for (int i = 0; i < count; ++i) lines->Write(absl::StrCat(std::string(96, 'x'), i));
  const uint64_t left_out = lines->left_out();
  EXPECT_GT(left_out, 1000);
  // Now start to read.
  std::string all = ReadUntil(reader_, "omitted");
  lines->Write("the end");
  lines.reset();
  all += ReadToEnd();
  const std::string gap = absl::StrCat("(", left_out, " lines omitted: nobody read them)\n");
  EXPECT_EQ(all.substr(all.size() - gap.size() - 8), gap + "the end\n");
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n') - std::count(fill.begin(), fill.end(), '\n'),
            count - left_out + 2);
}

TEST_F(LineWriterTest, EndsThoughNobodyReads) {
  LineWriter lines(file_);
  for (int i = 0; i < 1000; ++i) lines.Write(std::string(100, 'x'));
}

void OpenTerminal(int& screen, int& terminal) {
  screen = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(screen, 0);
  ASSERT_EQ(grantpt(screen), 0);
  ASSERT_EQ(unlockpt(screen), 0);
  terminal = open(ptsname(screen), O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
}

// A terminal may report that it has room and then accept only part of a line.
TEST_F(LineWriterTest, EndsThoughNobodyReadsTheTerminal) {
  int screen = -1, terminal = -1;
  ASSERT_NO_FATAL_FAILURE(OpenTerminal(screen, terminal));
  {
    LineWriter lines(terminal);
    for (int i = 0; i < 1000; ++i) lines.Write(std::string(1000, 'x'));
  }
  // Other processes that share the terminal may still block on it.
  EXPECT_EQ(fcntl(terminal, F_GETFL) & O_NONBLOCK, 0);
  close(terminal);
  close(screen);
}

TEST_F(LineWriterTest, GoesOnOnceATerminalMovesAgain) {
  int screen = -1, terminal = -1;
  ASSERT_NO_FATAL_FAILURE(OpenTerminal(screen, terminal));
  {
    LineWriter lines(terminal);
    for (int i = 0; i < 500; ++i) lines.Write(std::string(1000, 'x'));
    lines.Write("the end");
    // By then the writer has waited in vain a few times.
    absl::SleepFor(absl::Milliseconds(500));
    ReadUntil(screen, "the end");
  }
  close(terminal);
  close(screen);
}

TEST_F(LineWriterTest, LeavesThePipeBlockingForOthers) {
  { LineWriter lines(file_); }
  EXPECT_EQ(fcntl(file_, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(ReadToEnd(), "");
}

TEST_F(LineWriterTest, EndsThoughNobodyIsThere) {
  close(std::exchange(reader_, open("/dev/null", O_RDONLY)));
  LineWriter lines(file_);
  lines.Write("nobody hears this");
}

TEST_F(LineWriterTest, WritesALineThatIsLongerThanAPipe) {
  const std::string longest(100'000, 'x');
  LineWriter lines(file_);
  lines.Write(longest);
  EXPECT_EQ(ReadUntil(reader_, "\n"), longest + "\n");
}

}  // namespace
}  // namespace ballast
