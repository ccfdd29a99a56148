// SPDX-License-Identifier: Apache-2.0
#include "cli/display/log_merger.h"

#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace ballast {
namespace {

class LogMergerTest : public ::testing::Test {
 protected:
  LogMergerTest() {
    EXPECT_TRUE(logs_.AddSource("server 0", Path("server-0.log")).ok());
    EXPECT_TRUE(logs_.AddSource("worker 1", Path("worker-1.log")).ok());
  }

  static std::string Path(const std::string& name) { return ::testing::TempDir() + "/" + name; }

  static std::string Content(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(Path(name)).rdbuf();
    return text.str();
  }

  std::vector<std::string> printed_;
  LogMerger logs_{[this](absl::string_view line) { printed_.emplace_back(line); }, false};
};

TEST_F(LogMergerTest, PutsTheNameBeforeEachWholeLine) {
  logs_.Write(0, "lis");
  logs_.Write(1, "step 1\nst");
  logs_.Write(0, "tening\n");
  logs_.Write(1, "ep 2\n");
  EXPECT_EQ(printed_, (std::vector<std::string>{"[worker 1] step 1", "[server 0] listening", "[worker 1] step 2"}));
}

TEST_F(LogMergerTest, PrintsAnUnfinishedLineAtTheEnd) {
  logs_.Write(0, "last words");
  EXPECT_TRUE(printed_.empty());
  logs_.Finish(0);
  logs_.Finish(1);
  EXPECT_EQ(printed_, (std::vector<std::string>{"[server 0] last words"}));
}

TEST_F(LogMergerTest, CutsLongLinesWherePrintedButNotInTheFile) {
  logs_.Write(0, std::string(5000, 'x'));
  logs_.Write(0, "y\nnext\n");
  ASSERT_EQ(printed_.size(), 2u);
  EXPECT_EQ(printed_[0], "[server 0] " + std::string(2048, 'x') + " ... (2953 more bytes)");
  EXPECT_EQ(printed_[1], "[server 0] next");
  EXPECT_EQ(Content("server-0.log"), std::string(5000, 'x') + "y\nnext\n");
}

TEST_F(LogMergerTest, KeepsTheLastTenLines) {
  for (int i = 1; i <= 12; ++i) logs_.Write(1, "line " + std::to_string(i) + "\n");
  ASSERT_EQ(logs_.last_lines(1).size(), 10u);
  EXPECT_EQ(logs_.last_lines(1).front(), "line 3");
  EXPECT_EQ(logs_.last_lines(1).back(), "line 12");
  EXPECT_TRUE(logs_.last_lines(0).empty());
}

TEST_F(LogMergerTest, FindsTheNewestError) {
  EXPECT_EQ(logs_.LastError(0), "");
  logs_.Write(0, "error: first\nerror: port 7700 in use\nbye\n");
  EXPECT_EQ(logs_.LastError(0), "port 7700 in use");
}

TEST_F(LogMergerTest, PassesOnNotesIfItDoesNotPrintEveryLine) {
  std::vector<std::string> notes;
  LogMerger logs(nullptr, false, [&](absl::string_view note) { notes.emplace_back(note); });
  ASSERT_TRUE(logs.AddSource("worker 0", Path("notes.log")).ok());
  logs.Write(0, "model dense\nnote: 4 tensors\nsee note: none\n");
  EXPECT_EQ(notes, (std::vector<std::string>{"4 tensors"}));
}

TEST_F(LogMergerTest, LetsNoControlCharacterThrough) {
  logs_.Write(0, "a\tb\x1b[2J\x07\r\n");
  EXPECT_EQ(printed_[0], "[server 0] a\tb?[2J?");
}

TEST_F(LogMergerTest, ColoursTheNameAlone) {
  std::string printed;
  LogMerger coloured([&](absl::string_view line) { printed = std::string(line); }, true);
  ASSERT_TRUE(coloured.AddSource("server 0", Path("coloured.log")).ok());
  coloured.Write(0, "text\n");
  EXPECT_EQ(printed, "\x1b[36m[server 0]\x1b[0m text");
}

TEST_F(LogMergerTest, NamesAFileThatCannotBeWritten) {
  EXPECT_NE(logs_.AddSource("x", "/nonexistent/x.log").message().find("/nonexistent/x.log"), absl::string_view::npos);
}

}  // namespace
}  // namespace ballast
