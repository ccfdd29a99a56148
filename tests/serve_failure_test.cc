// SPDX-License-Identifier: Apache-2.0
// `ballast serve` by the real programs when something fails: the follower stops, servers die, files are damaged.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "tests/testing/serve_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(60);

// A job by hand, so that its server stays after the end of the training.
class ServeFailureTest : public ServeTest {
 protected:
  void WriteLoggedJob(int epochs) const {
    WriteClickJob(epochs);
    Write("job.textproto", absl::StrCat(Read("job.textproto"), "durability { mode: WAL }\n"));
  }

  // `address` and `control_address` are the ports' of an earlier process.
  ChildProcess StartLoggedServer(const std::string& address = "127.0.0.1:0",
                                 const std::string& control_address = "127.0.0.1:0") {
    ChildProcess server =
        StartServer({"--listen", address, "--control_listen", control_address, "--state_dir", Path("state")});
    const std::string line = server.last_line();
    const size_t begin = line.find("serves on ") + 10;
    data_address_ = line.substr(begin, line.find(' ', begin) - begin);
    return server;
  }

  void Follow() {
    Serve({Path("run"), "--coordinator", address_});
    ASSERT_EQ(served_["follows"], true);
  }

  // Probabilities by `ballast predict` with the files that the run has saved.
  std::vector<double> SavedPredictions() const {
    const std::string printed = Run({"predict", Path("run"), "--data", Path("clicks/test.tsv"), "--json"});
    std::vector<double> probabilities;
    for (absl::string_view line : absl::StrSplit(printed, '\n', absl::SkipEmpty())) {
      probabilities.push_back(json::parse(line)["probabilities"]["1"].get<double>());
    }
    return probabilities;
  }

  // The largest difference of an example's probability.
  double DistanceTo(const std::vector<double>& want, const std::vector<std::string>& clicks) const {
    const json got = Predictions("clicks", clicks);
    EXPECT_EQ(got.size(), want.size());
    double largest = 0;
    for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
      largest = std::max(largest, std::abs(got[i].get<double>() - want[i]));
    }
    return largest;
  }

  // Waits until the model that is served is the one that the run has saved.
  void ExpectSavedModel(const std::vector<std::string>& clicks) const {
    const std::vector<double> want = SavedPredictions();
    ASSERT_THAT(want, SizeIs(clicks.size()));
    const absl::Time deadline = absl::Now() + kTimeout;
    double distance = 1;
    while (distance > 1e-6 && absl::Now() < deadline) distance = DistanceTo(want, clicks);
    EXPECT_LE(distance, 1e-6) << Ask("GET", "/v1/models/clicks");
  }

  // Waits until GET of the model has an error, or has none.
  json AwaitModel(bool error) const {
    const absl::Time deadline = absl::Now() + kTimeout;
    json model;
    do {
      model = Ask("GET", "/v1/models/clicks");
    } while (model.contains("error") != error && absl::Now() < deadline);
    EXPECT_EQ(model.contains("error"), error) << model;
    return model;
  }

  // Runs a command that must end with this status; returns its output.
  static std::string Failure(std::vector<std::string> words, int status) {
    words.insert(words.begin(), {Binary("cli/ballast"), "serve"});
    ChildProcess serve(words);
    EXPECT_EQ(serve.Wait().ToString(), absl::StrCat("ended with status ", status)) << serve.output();
    return serve.output();
  }

  std::string data_address_;
};

TEST_F(ServeFailureTest, AFollowerThatWasStoppedCatchesUp) {
  WriteLoggedJob(/*epochs=*/10);
  ChildProcess server = StartLoggedServer();
  ChildProcess worker = StartWorker();
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  const std::vector<std::string> clicks = WriteClicks(200);
  Follow();
  const json before = Predictions("clicks", clicks);
  serve_->Signal(SIGSTOP);
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 0") << worker.output();
  serve_->Signal(SIGCONT);
  ExpectSavedModel(clicks);
  EXPECT_NE(Predictions("clicks", clicks), before);
  AwaitModel(/*error=*/false);
}

TEST_F(ServeFailureTest, AFollowerGoesOnWithTheServerThatReturnsAndSaysWhileItIsAway) {
  WriteLoggedJob(/*epochs=*/10);
  ChildProcess server = StartLoggedServer();
  ChildProcess worker = StartWorker();
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  const std::vector<std::string> clicks = WriteClicks(200);
  Follow();
  server.Signal(SIGKILL);
  server.Wait();
  EXPECT_THAT(AwaitModel(/*error=*/true)["error"], HasSubstr(data_address_));
  EXPECT_THAT(Predictions("clicks", clicks), SizeIs(200)) << "the newest values are served meanwhile";
  ChildProcess again = StartLoggedServer(data_address_, address_);
  EXPECT_EQ(worker.Wait().ToString(), "ended with status 0") << worker.output();
  ExpectSavedModel(clicks);
  const double age = AwaitModel(/*error=*/false)["age"]["seconds"];
  EXPECT_LT(age, 10);

  again.Signal(SIGKILL);
  again.Wait();
  AwaitModel(/*error=*/true);
  ExpectSavedModel(clicks);
}

TEST_F(ServeFailureTest, DamagedFilesAreRefusedByName) {
  WriteClickJob(/*epochs=*/1);
  Train({});
  const std::string manifest = Read("run/tables/ids/manifest.json");
  const std::string model = Read("run/model.safetensors"), rows = Read("run/tables/ids/rows-00000.safetensors");
  const auto error = [&](const std::string& name, const std::string& text, int status = 2) {
    const std::string path = absl::StrCat("run/", name), before = Read(path);
    Write(path, text);
    // Damaged files are no mistake of the caller, but texts that do not fit are.
    std::string output = Failure({Path("run")}, status);
    Write(path, before);
    EXPECT_THAT(output, StartsWith("error: "));
    return output;
  };
  const std::string rows_path = Path("run/tables/ids/rows-00000.safetensors");
  EXPECT_THAT(error("tables/ids/rows-00000.safetensors", rows.substr(0, rows.size() / 2), 1),
              HasSubstr(absl::StrCat(rows_path, ": got ", rows.size() / 2, " bytes")));
  EXPECT_THAT(error("tables/ids/rows-00000.safetensors", "", 1), HasSubstr("the file is damaged"));
  EXPECT_THAT(error("tables/ids/manifest.json", manifest.substr(0, 300)),
              HasSubstr("manifest.json: not JSON: at line"));
  EXPECT_THAT(error("tables/ids/manifest.json", absl::StrReplaceAll(manifest, {{"\"dim\": 8", "\"dim\": 4"}})),
              HasSubstr("values, F32 or BF16 ["));
  EXPECT_THAT(
      error("tables/ids/manifest.json", absl::StrReplaceAll(manifest, {{"\"name\": \"ids\"", "\"name\": \"users\""}})),
      HasSubstr("table \"ids\": got the rows of table \"users\""));
  EXPECT_THAT(error("model.safetensors", model.substr(0, model.size() - 4)), HasSubstr("model.safetensors: "));

  std::filesystem::rename(Path("run/tables/ids"), Path("run/tables/other"));
  EXPECT_THAT(Failure({Path("run")}, 2), HasSubstr("the model has table \"ids\", whose rows are missing"));
  std::filesystem::rename(Path("run/tables/other"), Path("run/tables/ids"));
  std::filesystem::remove(Path("run/tables/ids/rows-00000.safetensors"));
  EXPECT_THAT(Failure({Path("run")}, 2), HasSubstr(rows_path));
}

TEST_F(ServeFailureTest, APortInUseAndARunWithoutAModelAreRefused) {
  WriteJob();
  Train({});
  Serve({Path("run")});
  const std::string grpc = served_["grpc"];
  EXPECT_THAT(Failure({Path("run"), "--http", http_, "--grpc", "127.0.0.1:0", "--device", "cpu"}, 1),
              HasSubstr(absl::StrCat("HTTP address: got ", http_, ", want one that is free")));
  EXPECT_THAT(Failure({Path("run"), "--http", "127.0.0.1:0", "--grpc", grpc, "--device", "cpu"}, 1),
              HasSubstr(absl::StrCat("cannot listen on ", grpc)));
  std::filesystem::create_directories(Path("empty"));
  EXPECT_THAT(Failure({Path("empty")}, 2), HasSubstr(Path("empty")));
}

TEST_F(ServeFailureTest, AModelWithBatchNormIsServedOnlyAfterTheEndOfItsJob) {
  WriteJob({{"layers { relu {} }", "layers { batch_norm {} } layers { relu {} }"}, {"epochs: 3", "epochs: 1000000"}});
  ChildProcess server = StartServer({});
  ChildProcess worker = StartWorker();
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  EXPECT_THAT(Failure({Path("run"), "--coordinator", address_}, 2),
              HasSubstr("the model has \"batch_norm1/running_mean\", which its servers lack"));
}

TEST_F(ServeFailureTest, AnotherJobCannotBeFollowed) {
  WriteJob();
  Train({});
  WriteJob({{"name: \"blobs\"", "name: \"others\""}, {"epochs: 3", "epochs: 1000000"}});
  ChildProcess server = StartServer({});
  ChildProcess worker = StartWorker({"--run_dir", Path("other_run")});
  ASSERT_TRUE(worker.AwaitOutput(kUnderWay)) << worker.output();
  EXPECT_THAT(Failure({Path("run"), "--coordinator", address_}, 1), HasSubstr("cannot follow the job at"));
  EXPECT_THAT(Failure({Path("run"), "--coordinator", "127.0.0.1:1", "--connect_timeout", "1"}, 1),
              HasSubstr("cannot follow the job at 127.0.0.1:1"));
}

}  // namespace
}  // namespace ballast
