// SPDX-License-Identifier: Apache-2.0
#include "cli/page/run_watch.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/run/launch_record.h"
#include "common/run/run_folder.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class RunWatchTest : public testing::Test {
 protected:
  RunWatchTest() {
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directories(folder_.path() + "/logs");
  }
  ~RunWatchTest() override { std::filesystem::remove_all(folder_.path()); }

  static std::string Line(int64_t examples, double loss) {
    return absl::StrCat(
        "{\"kind\":\"train\",\"epoch\":1,\"step\":", examples / 10, ",\"examples\":", examples,
        ",\"seconds\":", examples / 1000.0, ",\"over_examples\":10,\"over_seconds\":0.01,\"loss\":", loss,
        ",\"learning_rate\":0.1,\"samples_per_second\":1000,\"staleness\":0.25,\"wait_share\":0.2,",
        "\"max_staleness\":2,\"bytes_sent\":1234.5,\"bytes_received\":1234.5,\"dropped\":0,", "\"skipped_steps\":0}\n");
  }
  void Append(const std::string& text) const { std::ofstream(folder_.metrics(), std::ios::app) << text; }

  // Returns the loss: [[time...], [low...], [high...], [examples...]].
  static Json LossOf(const RunWatch& run) {
    const Json history = Json::parse(run.HistoryJson());
    for (const Json& line : history["lines"]) {
      if (line[0] == "loss" && line[2] == "train loss") return line[3];
    }
    return {};
  }

  const RunFolder folder_{testing::TempDir() + "/run_watch_test"};
};

TEST_F(RunWatchTest, WaitsForTheRestOfACutLine) {
  Append(Line(10, 2.5) + Line(20, 2.25) + Line(30, 2).substr(0, 40));
  RunWatch run({.directory = folder_.path()});
  run.Step();
  EXPECT_EQ(LossOf(run)[1], Json({2.5, 2.25}));
  const Json history = Json::parse(run.HistoryJson());
  Append(Line(30, 2).substr(40));
  run.Step();
  EXPECT_EQ(LossOf(run)[1], Json({2.5, 2.25, 2}));
  // The page that has seen the first two gets the third.
  const Json news = Json::parse(run.NewsJson(history["epoch"], history["tick"]));
  ASSERT_EQ(news["ticks"].size(), 1);
  EXPECT_THAT(news["ticks"][0]["more"].dump(), HasSubstr("[\"loss\",0,\"train loss\",[["));
  EXPECT_EQ(news["ticks"][0]["more"][0][3][3], Json({30}));
  EXPECT_TRUE(Json::parse(run.NewsJson(7, 0)).contains("reset"));
}

TEST_F(RunWatchTest, DropsWhatTheJobUndid) {
  Append(Line(10, 3) + Line(20, 2) + Line(30, 1));
  RunWatch run({.directory = folder_.path()});
  run.Step();
  const Json before = Json::parse(run.HistoryJson());
  Append(Line(20, 2.5));
  run.Step();
  EXPECT_EQ(LossOf(run)[1], Json({3, 2.5}));
  EXPECT_TRUE(Json::parse(run.NewsJson(before["epoch"], before["tick"])).contains("reset"));
}

TEST_F(RunWatchTest, SaysThatARunHasEnded) {
  {
    auto record = LaunchRecord::Create(folder_.path(), absl::Now());
    ASSERT_TRUE(record.ok());
    RunWatch run({.directory = folder_.path()});
    run.Step();
    EXPECT_EQ(run.head().state, "starting");
    EXPECT_TRUE(run.head().live);
    EXPECT_FALSE(run.complete());
    ASSERT_TRUE(record->End(1, "worker 0 has failed").ok());
  }
  RunWatch run({.directory = folder_.path()});
  run.Step();
  EXPECT_EQ(run.head().state, "failed");
  EXPECT_EQ(run.head().error, "worker 0 has failed");
  EXPECT_FALSE(run.head().live);
  EXPECT_TRUE(run.complete());
}

TEST_F(RunWatchTest, NamesProcessesThatDoNotAnswer) {
  auto record = LaunchRecord::Create(folder_.path(), absl::Now());
  ASSERT_TRUE(record.ok());
  // Nobody listens there.
  std::ofstream(folder_.path() + "/logs/worker-3.http") << "127.0.0.1:1\n";
  std::ofstream(folder_.path() + "/logs/worker-4.http") << "nonsense\n";
  RunWatch run({.directory = folder_.path()});
  run.Step();
  ASSERT_EQ(run.head().silent.size(), 2);
  EXPECT_THAT(run.head().silent[0], HasSubstr("worker-3: 127.0.0.1:1: "));
  EXPECT_THAT(run.head().silent[1], HasSubstr("worker-4: HTTP address: got \"nonsense\", want HOST:PORT"));
}

TEST_F(RunWatchTest, ShowsARecordAfterTheRun) {
  PanelHistory history;
  history.Add(1e9, 0, {{.panel = 3, .series = 0, .figures = {{"compute", 0.5}}}});
  ASSERT_TRUE(history.Write(folder_.path() + "/page_history.json").ok());
  Append(Line(10, 2.5));
  RunWatch run({.directory = folder_.path()});
  run.Step();
  EXPECT_THAT(run.HistoryJson(), HasSubstr("[\"time\",0,\"compute\",[[1000000000.0],[0.5],[0.5],[0]]]"));
}

TEST_F(RunWatchTest, ADamagedRecordIsNoError) {
  std::ofstream(folder_.path() + "/page_history.json") << "{";
  Append(Line(10, 2.5));
  RunWatch run({.directory = folder_.path()});
  run.Step();
  EXPECT_EQ(LossOf(run)[1], Json({2.5}));
  ASSERT_EQ(run.head().notices.size(), 1);
  EXPECT_THAT(run.head().notices[0], HasSubstr("page_history.json"));
}

// So that the first panel appears at once, however long the record is (docs/guide/page.md).
TEST_F(RunWatchTest, ALongRecordIsSketchedBeforeItIsRead) {
  constexpr int kPoints = 250'000, kPeak = 123'457;
  {
    std::ofstream file(folder_.metrics());
    for (int i = 1; i <= kPoints; ++i) file << Line(10 * i, i == kPeak ? 99 : 2);
  }
  const absl::Time begin = absl::Now();
  RunWatch run({.directory = folder_.path()});
  run.Step();
  const std::string json = run.HistoryJson();
  const absl::Duration first = absl::Now() - begin;
  const Json sketch = LossOf(run);
  EXPECT_GT(sketch[0].size(), 100);
  EXPECT_LT(json.size(), 1 << 20);
  EXPECT_GT(sketch[3].back().get<double>(), 9.9 * kPoints);
  EXPECT_LT(run.head().read, 0.1);
  while (run.head().read < 1) run.Step();
  const absl::Duration all = absl::Now() - begin;
  std::cout << kPoints << " points, " << std::filesystem::file_size(folder_.metrics()) / 1'000'000
            << " MB: a sketch after " << absl::FormatDuration(first) << ", all read after " << absl::FormatDuration(all)
            << "\n";
  // Reading all of it keeps the peak.
  const Json loss = LossOf(run);
  EXPECT_LE(loss[0].size(), 512);
  EXPECT_EQ(*std::max_element(loss[2].begin(), loss[2].end()), 99);
}

}  // namespace
}  // namespace ballast
