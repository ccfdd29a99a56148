// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/run/safetensors.h"
#include "common/run/summary.h"
#include "gtest/gtest.h"
#include "tests/testing/child_process.h"

namespace ballast {

// Worker 0's output after its first epoch: the job is running.
inline constexpr char kUnderWay[] = "epoch 1: test loss";

// Runs the three programs on job files and data in the test's own directory.
class JobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/", absl::StrReplaceAll(test->name(), {{"/", "-"}}));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    setenv("BALLAST_SERVER_BINARY", Binary("server/ballast_server").c_str(), 1);
    setenv("BALLAST_WORKER_BINARY", Binary("worker/ballast_worker").c_str(), 1);
  }

  static std::string Binary(const std::string& path) { return std::filesystem::absolute(path).string(); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  void Write(const std::string& name, const std::string& text) const { std::ofstream(Path(name)) << text; }
  std::string Read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(Path(name)).rdbuf();
    return text.str();
  }

  // Writes rows of 4 features, and a label of 0, 1 or 2 that follows from them.
  void WriteData(const std::string& name, int rows) const {
    std::string text;
    for (int row = 0; row < rows; ++row) {
      const int label = row * 7 % 3;
      // Noise of -0.4 to 0.4 around the label's corner.
      auto noise = [row](int k) { return 0.2 * ((row * (3 + k) + k) % 5 - 2); };
      absl::StrAppend(&text, (label == 0 ? 2 : 0) + noise(0), ",", (label == 1 ? 2 : 0) + noise(1), ",",
                      (label == 2 ? 2 : 0) + noise(2), ",", noise(3), ",", label, "\n");
    }
    Write(name, text);
  }

  // Writes train.csv, test.csv (three classes) and their job file. `changes` replaces parts of the job file's text.
  void WriteJob(const std::vector<std::pair<std::string, std::string>>& changes = {}, int rows = 157) const {
    WriteData("train.csv", rows);
    WriteData("test.csv", 60);
    std::string text = R"(name: "blobs"
seed: 5
data {
  train { csv { path: "train.csv" label_column: -1 } }
  test { csv { path: "test.csv" label_column: -1 } }
}
model {
  layers { dense { units: 16 } }
  layers { relu {} }
  layers { dense { units: 3 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: 3 batch_size: 8 }
optimizer { sgd { learning_rate: 0.2 } }
policy { sync { deterministic: true } }
)";
    for (const auto& [from, to] : changes) {
      ASSERT_NE(text.find(from), std::string::npos) << from;
      text = absl::StrReplaceAll(text, {{from, to}});
    }
    Write("job.textproto", text);
  }

  // A job that does not end within a test.
  void WriteEndlessJob() const { WriteJob({{"epochs: 3", "epochs: 1000000"}}); }

  // Runs `ballast launch` with run directory `run`. Its output goes to the file out; the ChildProcess shows its
  // errors.
  ChildProcess Launch(const std::vector<std::string>& flags, const std::string& run = "run",
                      const std::string& device = "cpu") const {
    std::vector<std::string> argv = {"/bin/sh", "-c", "out=$1; shift; exec \"$@\" > \"$out\"", "sh"};
    argv.insert(argv.end(), {Path("out"), Binary("cli/ballast"), "launch", Path("job.textproto"), "--run-dir",
                             Path(run), "--threads", "1", "--device", device});
    argv.insert(argv.end(), flags.begin(), flags.end());
    return ChildProcess(argv);
  }
  // The summary that a launch with --json has printed.
  Summary Printed() const {
    const auto summary = SummaryFromJson(Read("out"));
    EXPECT_TRUE(summary.ok()) << summary.status();
    return summary.value_or(Summary());
  }
  // Returns the process of that program and rank that the launch has started.
  static Grandchild Child(const ChildProcess& launch, absl::string_view program, const std::string& rank) {
    for (Grandchild& child : Grandchild::Of(launch.pid())) {
      if (child.Is(program, rank)) return std::move(child);
    }
    ADD_FAILURE() << "no " << program << " of rank " << rank << "; output of the launch:\n" << launch.output();
    return Grandchild(launch.pid());
  }
  // Waits for the successful end of a launch with --json; returns its summary.
  Summary Finish(ChildProcess& launch) const {
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
    return Printed();
  }
  // Runs the job to its successful end; returns the JSON object that it prints.
  nlohmann::json Train(std::vector<std::string> flags, const std::string& run = "run",
                       const std::string& device = "cpu") const {
    flags.push_back("--json");
    ChildProcess launch = Launch(flags, run, device);
    EXPECT_EQ(launch.Wait().ToString(), "ended with status 0") << launch.output();
    return nlohmann::json::parse(Read("out"), nullptr, /*allow_exceptions=*/false);
  }
  // Runs a command of `ballast` to its successful end; returns its standard output.
  std::string Run(const std::vector<std::string>& words) const {
    std::vector<std::string> argv = {"/bin/sh", "-c",           "out=$1; shift; exec \"$@\" > \"$out\"",
                                     "sh",      Path("stdout"), Binary("cli/ballast")};
    argv.insert(argv.end(), words.begin(), words.end());
    ChildProcess command(argv);
    EXPECT_EQ(command.Wait().ToString(), "ended with status 0") << command.output();
    return Read("stdout");
  }

  // The trained tensors of a run.
  std::vector<LoadedTensor> Model(const std::string& run = "run") const {
    auto model = ReadSafetensors(Path(run + "/model.safetensors"));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->tensors : std::vector<LoadedTensor>();
  }

  // Starts a server by hand on a free port; its address is then in `address_`.
  ChildProcess StartServer(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {Binary("server/ballast_server"), "--listen", "127.0.0.1:0"});
    ChildProcess server(flags);
    EXPECT_TRUE(server.AwaitOutput("serves on ")) << server.output();
    EXPECT_TRUE(server.AwaitOutput("\n"));
    const std::string line = server.last_line();
    address_ = line.substr(line.rfind(' ') + 1);
    return server;
  }
  // Starts a worker by hand, of the job at `address_`.
  ChildProcess StartWorker(std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {Binary("worker/ballast_worker"), "--coordinator", address_, "--job",
                                 Path("job.textproto"), "--threads", "1", "--device", "cpu", "--run_dir", Path("run")});
    return ChildProcess(flags);
  }

  std::string address_;
  std::string folder_;
};

}  // namespace ballast
