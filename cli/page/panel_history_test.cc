// SPDX-License-Identifier: Apache-2.0
#include "cli/page/panel_history.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DownsampledLineTest, KeepsThePeaksOfALongLine) {
  DownsampledLine line(64);
  for (int i = 0; i < 100'000; ++i) line.Add(i, 10 * i, i == 70'001 ? 1000 : i == 70'002 ? -1000 : 1);
  EXPECT_LE(line.buckets().size(), 64);
  EXPECT_GE(line.buckets().size(), 32);
  float low = 0, high = 0;
  double before = -1;
  for (const DownsampledLine::Bucket& bucket : line.buckets()) {
    low = std::min(low, bucket.low);
    high = std::max(high, bucket.high);
    EXPECT_GT(bucket.time, before);
    EXPECT_EQ(bucket.x, 10 * bucket.time);
    before = bucket.time;
  }
  EXPECT_EQ(low, -1000);
  EXPECT_EQ(high, 1000);
  EXPECT_EQ(before, 99'999);
}

TEST(DownsampledLineTest, DropsWhatTheJobUndid) {
  DownsampledLine line(8);
  for (int i = 1; i <= 6; ++i) line.Add(i, i, 1);
  line.DropAfter(4);
  line.Add(7, 5, 2);
  ASSERT_EQ(line.buckets().size(), 5);
  EXPECT_EQ(line.buckets()[4].time, 7);
  EXPECT_EQ(line.buckets()[4].low, 2);
}

class PanelHistoryTest : public testing::Test {
 protected:
  PanelHistoryTest() { std::filesystem::create_directories(testing::TempDir()); }
  void WriteText(const std::string& text) const { std::ofstream(path_) << text; }

  const std::string path_ = testing::TempDir() + "/page_history_test.json";
};

TEST_F(PanelHistoryTest, ComesBackFromItsFile) {
  PanelHistory history;
  for (int i = 0; i < 2000; ++i) {
    history.Add(1e9 + i, 100 * i,
                {{.panel = 3, .series = 0, .figures = {{"compute \"x\"", 0.5}, {"wait", NAN}}},
                 {.panel = 4, .series = 0, .figures = {{"worker 1", 2.5}}}});
  }
  ASSERT_TRUE(history.Write(path_).ok());
  EXPECT_LT(std::filesystem::file_size(path_), 100'000);
  PanelHistory read;
  ASSERT_TRUE(read.Read(path_).ok());
  std::string lines, lines_read, last, last_read;
  history.AppendLines(lines);
  read.AppendLines(lines_read);
  AppendFigures(history.last(), last);
  AppendFigures(read.last(), last_read);
  EXPECT_EQ(lines, lines_read);
  EXPECT_THAT(last_read, HasSubstr("[\"stragglers\",0,[[\"worker 1\",2.5]]]"));
  // Bars have no line.
  EXPECT_THAT(lines, HasSubstr("[\"time\",0,\"compute \\\"x\\\"\","));
  EXPECT_THAT(lines, Not(HasSubstr("stragglers")));
}

TEST_F(PanelHistoryTest, BoundsTheLinesOfASeries) {
  PanelHistory history;
  for (int i = 0; i < 1000; ++i) history.Line({3, 0, absl::StrCat("name ", i)});
  EXPECT_EQ(history.Line({3, 0, "name 900"}), nullptr);
  EXPECT_NE(history.Line({3, 0, "name 1"}), nullptr);
  EXPECT_NE(history.Line({7, 0, "another series"}), nullptr);
}

TEST_F(PanelHistoryTest, RefusesADamagedFile) {
  PanelHistory history;
  std::filesystem::remove(path_);
  EXPECT_EQ(history.Read(path_).code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "[", "{}", "[1]", "{\"version\":2}", "{\"version\":1,\"lines\":["}) {
    WriteText(text);
    const absl::Status status = history.Read(path_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(path_));
  }
}

TEST_F(PanelHistoryTest, SkipsWhatItDoesNotKnow) {
  PanelHistory history;
  WriteText(
      "{\"version\":1,\"lines\":[1,[],[\"time\",0,\"a\",[[1],[2],[3]]],[\"time\",99,\"a\",[[1],[2],[3],[4]]],"
      "[\"nothing\",0,\"a\",[[1],[2],[3],[4]]],[\"time\",0,\"b\",[[1,2],[2],[3],[4]]],"
      "[\"time\",0,\"good\",[[1],[2],[3],[4]]]],\"last\":[3,[\"time\",-1,[]],[\"time\",0,[[\"x\",1],[2]]]]}");
  ASSERT_TRUE(history.Read(path_).ok());
  std::string lines;
  history.AppendLines(lines);
  EXPECT_THAT(lines, HasSubstr("[\"time\",0,\"good\",[[1.0],[2],[3],[4]]]"));
  ASSERT_EQ(history.last().size(), 1);
  EXPECT_EQ(history.last()[0].figures.size(), 1);
}

}  // namespace
}  // namespace ballast
