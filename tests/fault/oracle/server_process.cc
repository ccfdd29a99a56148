// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/oracle/server_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

constexpr char kServes[] = " serves on ";

// "VmRSS" of /proc/<pid>/status, in bytes.
uint64_t StatusBytes(pid_t pid, const std::string& field) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(field + ":", 0) != 0) continue;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() > 1 && absl::SimpleAtoi(words[1], &kib)) return kib * 1024;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(std::string binary, const std::string& host,
                                                                    std::vector<std::string> flags) {
  std::unique_ptr<ServerProcess> server(new ServerProcess(std::move(binary), std::move(flags)));
  if (absl::Status status = server->Launch(host + ":0", absl::Seconds(30)); !status.ok()) return status;
  return server;
}

absl::Status ServerProcess::Launch(const std::string& listen, absl::Duration patience) {
  std::vector<std::string> words = {binary_, "--listen", listen};
  words.insert(words.end(), flags_.begin(), flags_.end());
  process_.reset();
  output_.clear();
  absl::StatusOr<Process> process = Process::Start(words);
  if (!process.ok()) return process.status();
  process_.emplace(*std::move(process));
  const absl::Time deadline = absl::Now() + patience;
  while (true) {
    const size_t at = output_.find(kServes);
    const size_t end = at == std::string::npos ? at : output_.find('\n', at);
    if (end != std::string::npos) {
      const size_t begin = at + sizeof(kServes) - 1;
      // What follows a space is for people.
      address_ = output_.substr(begin, std::min(end, output_.find(' ', begin)) - begin);
      return absl::OkStatus();
    }
    pollfd waiting = {process_->output(), POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0 || poll(&waiting, 1, static_cast<int>(left)) != 1 || !ReadOutput()) {
      return absl::UnavailableError(absl::StrCat("server on ", listen, " does not serve; it said:\n", output_));
    }
  }
}

bool ServerProcess::ReadOutput() {
  char buffer[4096];
  const ssize_t got = read(process_->output(), buffer, sizeof(buffer));
  if (got > 0) output_.append(buffer, got);
  return got > 0;
}

const std::string& ServerProcess::output() {
  while (ReadOutput()) {
  }
  return output_;
}

absl::Status ServerProcess::AwaitEnd(absl::Duration patience) {
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, process_->pid(), 0));
  pollfd waiting = {handle, POLLIN, 0};
  const bool ended = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 1;
  close(handle);
  if (!ended) return absl::DeadlineExceededError(absl::StrCat("server on ", address_, " does not end"));
  process_->Reap();
  return absl::OkStatus();
}

absl::Status ServerProcess::Kill() {
  process_->Signal(SIGKILL);
  return AwaitEnd(absl::Seconds(30));
}

absl::Status ServerProcess::Restart(absl::Duration patience) { return Launch(address_, patience); }

absl::Status ServerProcess::End() {
  process_->Signal(SIGTERM);
  if (absl::Status status = AwaitEnd(absl::Seconds(30)); !status.ok()) return status;
  const ExitStatus ended = process_->status().value_or(ExitStatus{true, 0});
  if (ended.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("server on ", address_, " ", ended.ToString(), "; it said:\n", output()));
}

bool ServerProcess::Runs() { return !process_->Reap(); }

uint64_t ServerProcess::resident_bytes() const { return StatusBytes(process_->pid(), "VmRSS"); }

uint64_t ServerProcess::peak_resident_bytes() const { return StatusBytes(process_->pid(), "VmHWM"); }

int ServerProcess::descriptors() const {
  std::error_code error;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", process_->pid(), "/fd"), error)) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

}  // namespace ballast
