// SPDX-License-Identifier: Apache-2.0
#include "cli/report/run_catalog.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/command/command.h"
#include "common/run/launch_record.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kJob[] = R"(name: "small"
data { train { csv { path: "train.csv" } } }
model { layers { dense { units: 1 } } loss { mean_squared_error {} } }
training { epochs: 4 batch_size: 4 }
optimizer { sgd { learning_rate: 0.1 } }
)";

constexpr char kMetrics[] =
    R"({"kind":"train","epoch":1,"step":2,"examples":8,"seconds":1,"loss":2,"learning_rate":0.1,"samples_per_second":8,"staleness":0,"wait_share":0,"max_staleness":0,"bytes_sent":0,"bytes_received":0,"dropped":0,"skipped_steps":0}
{"kind":"test","epoch":1,"step":2,"seconds":2,"loss":0.5,"accuracy":0.75}
)";

class RunCatalogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ + "/" + path).parent_path());
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/" + path, {text}).ok());
  }

  // Writes what a launch that ended leaves.
  void WriteRun(const std::string& name, int64_t start_second, const Summary& summary) {
    Write(name + "/summary.json", SummaryToJson(summary));
    auto record = LaunchRecord::Create(folder_ + "/" + name, absl::FromUnixSeconds(start_second));
    ASSERT_TRUE(record.ok()) << record.status();
    ASSERT_TRUE(record->End(0, "").ok());
  }

  RunInfo Read(const std::string& name) {
    absl::StatusOr<RunInfo> run = ReadRun(folder_ + "/" + name);
    EXPECT_TRUE(run.ok()) << run.status();
    return run.value_or(RunInfo());
  }

  static RunList List(const std::string& directory) {
    absl::StatusOr<RunList> list = ListRuns(directory);
    EXPECT_TRUE(list.ok()) << list.status();
    return list.value_or(RunList());
  }

  // Lists the test's directory; returns the names of the runs.
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const RunInfo& run : List(folder_).runs) names.push_back(run.directory.substr(folder_.size() + 1));
    return names;
  }

  int Runs(std::vector<std::string> args) { return RunsCommand(args, out_, err_); }

  std::string folder_;
  std::ostringstream out_, err_;
};

TEST_F(RunCatalogTest, TellsHowARunEnded) {
  struct Case {
    std::optional<int> exit_status;
    std::optional<bool> interrupted;
    RunState state;
    std::string error;
  };
  const Case cases[] = {
      {0, false, RunState::kFinished, ""},
      {130, true, RunState::kInterrupted, ""},
      {130, std::nullopt, RunState::kInterrupted, ""},
      {1, std::nullopt, RunState::kFailed, "worker 0 died"},
      // The servers failed after the model was saved.
      {1, false, RunState::kFailed, "worker 0 died"},
      // The launch was killed: before the end, and after the model was saved.
      {std::nullopt, std::nullopt, RunState::kFailed, "the launch was killed"},
      {std::nullopt, false, RunState::kFinished, ""},
  };
  int number = 0;
  for (const Case& c : cases) {
    const std::string name = absl::StrCat("run", number++);
    Write(name + "/job.textproto", kJob);
    if (c.interrupted.has_value()) {
      Write(name + "/summary.json", SummaryToJson({.job = "small", .interrupted = *c.interrupted}));
    }
    auto record = LaunchRecord::Create(folder_ + "/" + name, absl::UnixEpoch());
    ASSERT_TRUE(record.ok());
    EXPECT_EQ(Read(name).state, RunState::kRunning) << name;
    if (c.exit_status.has_value()) {
      EXPECT_TRUE(record->End(*c.exit_status, c.error).ok());
    }
    { const LaunchRecord closed = *std::move(record); }
    EXPECT_EQ(Read(name).state, c.state) << name;
    EXPECT_EQ(Read(name).error, c.error) << name;
  }
}

TEST_F(RunCatalogTest, TakesTheResultSoFarFromTheMetrics) {
  Write("run/job.textproto", kJob);
  Write("run/metrics.jsonl", kMetrics);
  const RunInfo run = Read("run");
  EXPECT_EQ(run.state, RunState::kUnfinished);
  EXPECT_EQ(run.summary.job, "small");
  EXPECT_EQ(run.mode, "sync");
  EXPECT_EQ(run.summary.test_accuracy, 0.75);
  EXPECT_EQ(run.summary.samples_per_second, 4);
  EXPECT_EQ(EpochsText(run), "1/4");
}

TEST_F(RunCatalogTest, KnowsNoLastEpochOfAStream) {
  const std::string stream = "stream { epoch_examples: 8 } }\nmodel {";
  Write("run/job.textproto", absl::StrReplaceAll(kJob, {{"}\nmodel {", stream}, {"epochs: 4", "epochs: 1000000"}}));
  Write("run/metrics.jsonl", kMetrics);
  EXPECT_EQ(EpochsText(Read("run")), "1");
}

TEST_F(RunCatalogTest, ListsTheNewestFirstAndThoseOfSweeps) {
  WriteRun("old", 1000, {.job = "a"});
  WriteRun("new", 3000, {.job = "b"});
  WriteRun("sweep/01-rate=0.1", 2000, {.job = "c"});
  Write("sweep/sweep.json", "{}");
  Write("sweep/logs/01.log", "");
  EXPECT_THAT(Names(), ElementsAre("new", "sweep/01-rate=0.1", "old"));
  EXPECT_THAT(List(folder_).skipped, IsEmpty());
  EXPECT_THAT(List(folder_ + "/sweep").skipped, IsEmpty());
  EXPECT_EQ(List(folder_ + "/sweep").runs.size(), 1);
  EXPECT_EQ(List(folder_ + "/old").runs.size(), 1);
}

TEST_F(RunCatalogTest, SkipsDirectoriesThatAreDamagedOrForeign) {
  WriteRun("good", 1000, {.job = "a"});
  Write("damaged_summary/summary.json", "{\"job\": 5");
  Write("damaged_launch/launch.json", "\xff\xfe");
  Write("foreign/notes.txt", "no run");
  Write("no_file/metrics.jsonl/in_the_way", "");
  Write(".hidden/notes.txt", "");
  Write("file", "");
  EXPECT_THAT(Names(), ElementsAre("good"));
  std::vector<std::string> skipped;
  const RunList list = List(folder_);
  for (const RunList::Skipped& one : list.skipped) {
    skipped.push_back(one.directory.substr(folder_.size() + 1));
    EXPECT_THAT(one.reason, HasSubstr(one.directory));
  }
  EXPECT_THAT(skipped, ElementsAre("damaged_launch", "damaged_summary", "foreign", "no_file"));
}

TEST_F(RunCatalogTest, SurvivesAJobFileOfAnotherRelease) {
  WriteRun("run", 1000, {.job = "a", .mode = "async"});
  Write("run/job.textproto", "name: \"a\"\nunheard_of: 3\n");
  EXPECT_EQ(Read("run").mode, "async");
  EXPECT_EQ(Read("run").job, std::nullopt);
}

TEST_F(RunCatalogTest, RanksByAucThenByAccuracyThenByLossThenByState) {
  const auto run = [](RunState state, std::optional<double> accuracy, std::optional<double> test_loss, double loss) {
    RunInfo info;
    info.state = state;
    info.summary = {.steps = 1, .train_loss = loss, .test_loss = test_loss, .test_accuracy = accuracy};
    return info;
  };
  RunInfo clicks = run(RunState::kFinished, 0.6, 0.5, 1);
  clicks.summary.test_auc = 0.75;
  RunInfo worse_clicks = run(RunState::kFinished, 0.7, 0.4, 1);
  worse_clicks.summary.test_auc = 0.7;
  RunInfo failed_clicks = clicks;
  failed_clicks.state = RunState::kFailed;
  const RunInfo best_first[] = {clicks,
                                worse_clicks,
                                run(RunState::kFinished, 0.9, 0.5, 1),
                                run(RunState::kFinished, 0.8, 0.1, 1),
                                run(RunState::kFinished, 0.8, 0.2, 1),
                                run(RunState::kFinished, std::nullopt, 0.1, 1),
                                run(RunState::kFinished, std::nullopt, 0.2, 1),
                                run(RunState::kFinished, std::nullopt, std::nullopt, 0.1),
                                run(RunState::kFinished, std::nullopt, NAN, NAN),
                                failed_clicks,
                                run(RunState::kFailed, 0.95, 0.1, 1)};
  for (size_t a = 0; a < std::size(best_first); ++a) {
    for (size_t b = 0; b < std::size(best_first); ++b) {
      EXPECT_EQ(IsBetter(best_first[a], best_first[b]), a < b) << a << " " << b;
    }
  }
}

TEST_F(RunCatalogTest, SaysWhyADirectoryCannotBeRead) {
  EXPECT_EQ(ReadRun("/nonexistent/run").status().message(),
            "run directory /nonexistent/run: No such file or directory");
}

TEST_F(RunCatalogTest, ASmallLossIsNotShownAsZero) {
  RunInfo run;
  run.summary.test_loss = 0.00002;
  EXPECT_EQ(TestText(run), "loss 2e-05");
}

TEST_F(RunCatalogTest, AClickModelIsShownByItsAuc) {
  RunInfo run;
  run.summary.test_accuracy = 0.9;
  run.summary.test_auc = 0.78434;
  EXPECT_EQ(TestText(run), "AUC 0.7843");
  EXPECT_EQ(RunToJson(run)["test_auc"], 0.78434);
  EXPECT_TRUE(RunToJson(run)["bayes_auc"].is_null());
}

TEST_F(RunCatalogTest, RunsPrintsATable) {
  WriteRun("first", 1795363200, {.job = "mnist", .mode = "async", .epochs = 3, .test_accuracy = 0.8974});
  Write("notes/notes.txt", "");
  EXPECT_EQ(Runs({folder_}), 0);
  EXPECT_EQ(out_.str(), absl::StrCat("started           job    mode   state     epochs  test             samples/s  "
                                     "directory\n2026-11-22 16:00  mnist  async  finished  3       accuracy 0.8974  -"
                                     "          ",
                                     folder_, "/first\n"));
  EXPECT_THAT(err_.str(), HasSubstr(absl::StrCat("skipped: run directory ", folder_, "/notes: has none of ")));
}

TEST_F(RunCatalogTest, RunsPrintsOneJsonObject) {
  WriteRun("first", 1795363200, {.job = "mnist", .mode = "async", .epochs = 3, .test_loss = 0.25});
  Write("notes/notes.txt", "");
  EXPECT_EQ(Runs({folder_, "--json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  ASSERT_EQ(json["runs"].size(), 1);
  const auto& run = json["runs"][0];
  EXPECT_EQ(run["directory"], folder_ + "/first");
  EXPECT_EQ(run["state"], "finished");
  EXPECT_EQ(run["started"], "2026-11-22T16:00:00Z");
  EXPECT_EQ(run["test_loss"], 0.25);
  EXPECT_TRUE(run["test_accuracy"].is_null());
  EXPECT_EQ(json["skipped"][0]["directory"], folder_ + "/notes");
}

TEST_F(RunCatalogTest, RunsRefusesWhatIsNoDirectory) {
  EXPECT_EQ(Runs({folder_ + "/none"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("/none\" is no directory"));
  EXPECT_EQ(Runs({"a", "b"}), 2);
  EXPECT_EQ(Runs({folder_}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("no runs\n"));
}

}  // namespace
}  // namespace ballast
