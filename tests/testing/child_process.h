// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/program/process.h"
#include "gtest/gtest.h"

namespace ballast {

// Timeout of every wait in a test; a loaded machine needs less.
inline constexpr absl::Duration kTestTimeout = absl::Seconds(60);

// Owns a process and its output, for tests. Kills the process group when it goes out of scope.
// Thread safety: confined to the thread that started it, the main one.
class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& argv) : process_(Process::Start(argv).value()) {}

  pid_t pid() const { return process_.pid(); }
  // Signals the process group, like a terminal.
  void Signal(int signal) { process_.Signal(signal); }

  // Standard output and standard error, as far as they were read.
  const std::string& output() const { return output_; }
  std::string last_line() const {
    const absl::string_view text = absl::StripTrailingAsciiWhitespace(output_);
    return std::string(text.substr(text.rfind('\n') + 1));
  }

  // Returns true if it prints `text`, now or before it ends.
  bool AwaitOutput(absl::string_view text) {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    while (output_.find(std::string(text)) == std::string::npos) {
      if (!ReadSome(deadline)) return false;
    }
    return true;
  }

  // Reads its output until it has ended; fails the test at the timeout.
  ExitStatus Wait() {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    while (ReadSome(deadline)) {
    }
    const int handle = static_cast<int>(syscall(SYS_pidfd_open, process_.pid(), 0));
    pollfd waiting = {handle, POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, absl::ToInt64Milliseconds(kTestTimeout)), 1) << "it still runs; output:\n" << output_;
    close(handle);
    process_.Reap();
    return process_.status().value_or(ExitStatus{true, 0});
  }

 private:
  // Returns false at the end of output and at the deadline.
  bool ReadSome(absl::Time deadline) {
    pollfd waiting = {process_.output(), POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0 || poll(&waiting, 1, left) != 1) return false;
    char buffer[4096];
    const ssize_t got = read(process_.output(), buffer, sizeof(buffer));
    if (got <= 0) return false;
    output_.append(buffer, got);
    return true;
  }

  Process process_;
  std::string output_;
};

// A process that another one started. A pidfd lets the test see its end though it cannot reap it, and its signals
// cannot reach another process.
class Grandchild {
 public:
  explicit Grandchild(pid_t pid) : pid_(pid), handle_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {
    std::ostringstream text;
    text << std::ifstream("/proc/" + std::to_string(pid) + "/cmdline").rdbuf();
    words_ = absl::StrSplit(text.str(), '\0');
  }
  Grandchild(Grandchild&& other) noexcept : pid_(other.pid_), handle_(other.handle_), words_(std::move(other.words_)) {
    other.handle_ = -1;
  }
  ~Grandchild() {
    if (handle_ >= 0) close(handle_);
  }

  // Returns the current children of a process.
  static std::vector<Grandchild> Of(pid_t parent) {
    const std::string task = "/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent);
    std::ifstream file(task + "/children");
    std::vector<Grandchild> children;
    for (pid_t pid; file >> pid;) children.emplace_back(pid);
    return children;
  }

  pid_t pid() const { return pid_; }

  // Returns true if it runs `program` (by the end of its path) with that rank.
  bool Is(absl::string_view program, const std::string& rank) const {
    if (words_[0].size() < program.size() ||
        absl::string_view(words_[0]).substr(words_[0].size() - program.size()) != program) {
      return false;
    }
    for (size_t i = 1; i + 1 < words_.size(); ++i) {
      if (words_[i] == "--rank") return words_[i + 1] == rank;
    }
    return false;
  }

  bool HasWord(const std::string& word) const { return std::count(words_.begin(), words_.end(), word) > 0; }

  void Signal(int signal) const { syscall(SYS_pidfd_send_signal, handle_, signal, nullptr, 0); }

  bool AwaitEnd() const {
    pollfd waiting = {handle_, POLLIN, 0};
    return poll(&waiting, 1, absl::ToInt64Milliseconds(kTestTimeout)) == 1;
  }

 private:
  pid_t pid_;
  int handle_;
  std::vector<std::string> words_;
};

}  // namespace ballast
