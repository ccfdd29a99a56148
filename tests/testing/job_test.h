// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/testing/child_process.h"

namespace ballast {

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

  // Runs `ballast launch` with run directory `run`. Its output goes to the file out; the ChildProcess shows its
  // errors.
  ChildProcess Launch(const std::vector<std::string>& flags, const std::string& run = "run") const {
    std::vector<std::string> argv = {"/bin/sh",
                                     "-c",
                                     "out=$1; shift; exec \"$@\" > \"$out\"",
                                     "sh",
                                     Path("out"),
                                     Binary("cli/ballast"),
                                     "launch",
                                     Path("job.textproto"),
                                     "--run-dir",
                                     Path(run),
                                     "--threads",
                                     "1",
                                     "--device",
                                     "cpu"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    return ChildProcess(argv);
  }

  std::string folder_;
};

}  // namespace ballast
