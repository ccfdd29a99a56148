// SPDX-License-Identifier: Apache-2.0
// Jobs whose training data is a stream, by `ballast launch` with real servers and workers.
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class StreamTest : public JobTest {
 protected:
  // A job of the three classes of JobTest that reads from `path` and ends 5 s after the last row. An epoch has 100
  // examples.
  void WriteStreamJob(const std::string& path, const std::string& durability = "NONE") const {
    WriteJob({{"train { csv { path: \"train.csv\" label_column: -1 } }",
               absl::StrCat("train { csv { path: \"", path,
                            "\" label_column: -1 } }\n  stream { epoch_examples: 100 idle_seconds: 5 }")},
              {"epochs: 3", "epochs: 1000000"},
              {"policy { sync { deterministic: true } }",
               absl::StrCat("policy { async {} }\ndurability { mode: ", durability, " checkpoint_seconds: 1 }")}});
  }
  // Returns rows as WriteData makes them.
  std::string Rows(int count) const {
    WriteData("rows.csv", count);
    return Read("rows.csv");
  }
  // Waits until all rows up to that line of a file are leased.
  bool AwaitStream(const std::string& file, uint64_t lines, const std::string& run = "run") const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (absl::Now() < deadline) {
      ChildProcess status({"/bin/sh", "-c", "out=$1; shift; exec \"$@\" > \"$out\"", "sh", Path("status"),
                           Binary("cli/ballast"), "status", Path(run), "--json"});
      if (status.Wait().ToString() != "ended with status 0") continue;
      const auto json = nlohmann::json::parse(Read("status"), nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json["job"].contains("stream_file")) continue;
      if (json["job"]["stream_file"] == file && json["job"]["stream_lines"] >= lines) return true;
    }
    return false;
  }
  void Append(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::app) << text << std::flush;
  }
};

TEST_F(StreamTest, EachRowOfAGrowingFileIsTrainedOnce) {
  WriteStreamJob("grows.csv");
  const std::string rows = Rows(140), more = Rows(61);
  Write("grows.csv", rows + more.substr(0, 5));
  ChildProcess launch = Launch({"--servers", "2", "--workers", "2", "--json"});
  ASSERT_TRUE(AwaitStream("grows.csv", 140)) << launch.output();
  EXPECT_THAT(Run({"status", Path("run")}), HasSubstr("  stream: grows.csv, line 140, byte "));
  Append("grows.csv", more.substr(5));
  const Summary summary = Finish(launch);
  EXPECT_EQ(summary.examples, 201);
  EXPECT_EQ(summary.examples_repeated, 0);
  EXPECT_TRUE(std::filesystem::exists(Path("run/model.safetensors")));
}

TEST_F(StreamTest, AResumedJobGoesOnWhereItStopped) {
  std::filesystem::create_directories(Path("days"));
  WriteStreamJob("days", "CHECKPOINT");
  Write("days/1.csv", Rows(150));
  ChildProcess first = Launch({"--workers", "2", "--set", "data.stream.idle_seconds=0"}, "first");
  ASSERT_TRUE(AwaitStream("1.csv", 150, "first")) << first.output();
  first.Signal(SIGTERM);
  EXPECT_EQ(first.Wait().ToString(), "ended with status 130") << first.output();
  Append("days/1.csv", Rows(7));
  Write("days/2.csv", Rows(50));
  ChildProcess second = Launch({"--resume", Path("first"), "--workers", "3", "--json"}, "second");
  const Summary summary = Finish(second);
  EXPECT_EQ(summary.examples, 207);
  EXPECT_EQ(summary.examples_repeated, 0);
}

TEST_F(StreamTest, NothingIsLostWhenServersAndWorkersAreKilled) {
  std::filesystem::create_directories(Path("days"));
  WriteStreamJob("days", "WAL");
  Write("days/1.csv", Rows(400));
  ChildProcess launch = Launch({"--servers", "2", "--workers", "2", "--chaos", "kill-server=2s,kill-worker=1500ms",
                                "--max_restarts", "100", "--json"});
  for (int day = 2; day <= 6; ++day) {
    ASSERT_TRUE(AwaitStream(absl::StrCat(day - 1, ".csv"), 400)) << launch.output();
    // A producer writes a file under another name first.
    Write("_next", Rows(400));
    std::filesystem::rename(Path("_next"), Path(absl::StrCat("days/", day, ".csv")));
  }
  const Summary summary = Finish(launch);
  EXPECT_GE(summary.examples, 2400);
  EXPECT_LE(summary.examples - summary.examples_repeated, 2400);
  EXPECT_EQ(summary.pushes_lost, 0);
  EXPECT_EQ(summary.pushes_duplicated, 0);
}

TEST_F(StreamTest, ABadRowNamesItsFileAndLine) {
  WriteStreamJob("grows.csv");
  Write("grows.csv", Rows(20));
  ChildProcess launch = Launch({"--workers", "2", "--verbose"});
  ASSERT_TRUE(launch.AwaitOutput("a stream of training examples")) << launch.output();
  Append("grows.csv", "1,2,x,4,0\n");
  EXPECT_NE(launch.Wait().ToString(), "ended with status 0");
  EXPECT_THAT(launch.output(), HasSubstr("grows.csv:21: "));
  Write("grows.csv", Rows(20) + "1,2,3,4,7\n");
  ChildProcess again = Launch({"--workers", "1"}, "again");
  EXPECT_NE(again.Wait().ToString(), "ended with status 0");
  EXPECT_THAT(again.output(), HasSubstr("grows.csv:21: "));
}

TEST_F(StreamTest, AJobThatCannotBeAStreamIsRefused) {
  WriteStreamJob("grows.csv");
  Write("grows.csv", Rows(20));
  ChildProcess launch = Launch({"--mode", "sync"});
  EXPECT_EQ(launch.Wait().ToString(), "ended with status 2");
  EXPECT_THAT(launch.output(), HasSubstr("policy: got sync, want async or bounded in a job with data.stream"));
}

}  // namespace
}  // namespace ballast
