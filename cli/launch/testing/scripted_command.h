// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/program/process.h"
#include "common/storage/file.h"
#include "gtest/gtest.h"

namespace ballast {

// Runs a command of the program ballast in the test's own directory, with scripts in place of the server and the
// worker. The directory has the job `job.textproto`.
class ScriptedCommandTest : public ::testing::Test {
 protected:
  explicit ScriptedCommandTest(std::string command) : command_(std::move(command)) {}

  void SetUp() override {
    folder_ = absl::StrCat(::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    ballast_ = std::filesystem::absolute("cli/ballast").string();
    Write("job.textproto", kJob);
    Write("train.csv", "1,2\n");
    Program("server", R"(
trap 'exit 0' TERM
[ -n "$address_file" ] && echo 127.0.0.1:1 > "$address_file.new" && mv "$address_file.new" "$address_file"
while :; do tail -f /dev/null & wait; done
)");
    Program("worker", "exit 0");
    // A pipe from the scripts to the test.
    ASSERT_EQ(mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
    pipe_ = open((folder_ + "/pipe").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(pipe_, 0);
    setenv("PIPE", (folder_ + "/pipe").c_str(), 1);
  }

  void TearDown() override { close(pipe_); }

  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }

  std::string Read(const std::string& name) { return ReadFile(folder_ + "/" + name).value_or(""); }

  // Replaces the server or the worker by a script, in which each of its flags is a variable.
  void Program(const std::string& role, const std::string& script) {
    Write(role, "#!/bin/sh\nwhile [ $# -gt 1 ]; do export \"${1#--}=$2\"; shift 2; done\n" + script);
    std::filesystem::permissions(folder_ + "/" + role, std::filesystem::perms::owner_all);
    setenv(role == "server" ? "BALLAST_SERVER_BINARY" : "BALLAST_WORKER_BINARY", (folder_ + "/" + role).c_str(), 1);
  }

  // Starts the command, with its output in the files `out` and `err`.
  Process Start(const std::string& flags) {
    const std::string words = absl::StrCat(ballast_, " ", command_, " ", flags, " > out 2> err");
    return Process::Start({"/bin/sh", "-c", absl::StrCat("cd ", folder_, " && exec ", words)}).value();
  }

  // Blocks until the process ends that this pidfd stands for, then closes it.
  static void ExpectEnd(int handle) {
    pollfd waiting = {handle, POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, kMilliseconds), 1) << "still runs";
    close(handle);
  }

  static ExitStatus Wait(Process& process) {
    ExpectEnd(static_cast<int>(syscall(SYS_pidfd_open, process.pid(), 0)));
    process.Reap();
    return process.status().value_or(ExitStatus{true, 0});
  }

  int Run(const std::string& flags) {
    Process process = Start(flags);
    return Wait(process).number;
  }

  // Returns the next line that a script writes to $PIPE.
  std::string NextLine() {
    std::string line;
    char c = 0;
    pollfd waiting = {pipe_, POLLIN, 0};
    while (poll(&waiting, 1, kMilliseconds) == 1 && read(pipe_, &c, 1) == 1 && c != '\n') line.push_back(c);
    return line;
  }

  static constexpr char kJob[] = R"(name: "small"
data { train { csv { path: "train.csv" } } }
model { layers { dense { units: 1 } } loss { mean_squared_error {} } }
training { epochs: 1 batch_size: 4 }
optimizer { sgd { learning_rate: 0.1 } }
)";

  // A limit for what takes a moment, also with sanitizers on a busy machine.
  static constexpr int kMilliseconds = 60000;

  const std::string command_;
  std::string folder_;
  std::string ballast_;
  int pipe_ = -1;
};

}  // namespace ballast
