// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/programs/program.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

// Returns a field such as "VmRSS" of /proc/<pid>/status, in bytes.
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

constexpr size_t kMaxOutput = 1 << 20;
constexpr char kServes[] = " serves on ";

int Milliseconds(absl::Time until) {
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(until - absl::Now())));
}

// Returns as much of the end of the output as an error should hold.
absl::string_view End(absl::string_view output) {
  return output.substr(output.size() - std::min<size_t>(output.size(), 2000));
}

}  // namespace

ProcessUse ProcessUse::Of(pid_t pid) {
  ProcessUse use = {StatusBytes(pid, "VmRSS"), StatusBytes(pid, "VmHWM")};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    static_cast<void>(entry);
    ++use.descriptors;
  }
  return use;
}

bool EnterNamespaces(int flags) {
  if (unshare(flags) == 0) return true;
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER | flags) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
  return true;
}

std::vector<pid_t> ChildrenOf(pid_t parent, const std::string& program) {
  std::ifstream file(absl::StrCat("/proc/", parent, "/task/", parent, "/children"));
  std::vector<pid_t> children;
  for (pid_t pid; file >> pid;) {
    std::string path;
    std::getline(std::ifstream(absl::StrCat("/proc/", pid, "/cmdline")), path, '\0');
    if (absl::EndsWith(path, program)) children.push_back(pid);
  }
  return children;
}

absl::StatusOr<std::unique_ptr<Program>> Program::Start(std::vector<std::string> words) {
  absl::StatusOr<Process> process = Process::Start(words);
  if (!process.ok()) return process.status();
  return std::unique_ptr<Program>(
      new Program(std::filesystem::path(words[0]).filename().string(), *std::move(process)));
}

bool Program::ReadOutput() {
  char buffer[4096];
  const ssize_t got = read(process_.output(), buffer, sizeof(buffer));
  if (got <= 0) return false;
  output_.append(buffer, got);
  if (output_.size() > kMaxOutput) {
    output_.erase(0, kMaxOutput / 2);
    heard_ -= std::min(heard_, kMaxOutput / 2);
  }
  return true;
}

const std::string& Program::output() {
  while (ReadOutput()) {
  }
  return output_;
}

absl::StatusOr<std::string> Program::AwaitLine(absl::string_view text, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const size_t at = output_.find(std::string(text), heard_);
    const size_t end = at == std::string::npos ? at : output_.find('\n', at);
    if (end != std::string::npos) {
      const size_t newline = output_.rfind('\n', at);
      const size_t begin = newline == std::string::npos ? 0 : newline + 1;
      heard_ = end + 1;
      return output_.substr(begin, end - begin);
    }
    pollfd waiting = {process_.output(), POLLIN, 0};
    if (absl::Now() >= deadline || poll(&waiting, 1, Milliseconds(deadline)) != 1 || !ReadOutput()) {
      return absl::UnavailableError(absl::StrCat(name_, " did not print \"", text, "\"; output:\n", End(output_)));
    }
  }
}

absl::StatusOr<ExitStatus> Program::AwaitEnd(absl::Duration timeout) {
  if (process_.Reap()) return *process_.status();
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, process_.pid(), 0));
  const absl::Time deadline = absl::Now() + timeout;
  bool ended = false;
  // The output may exceed what a pipe holds.
  for (bool talks = true; !ended && absl::Now() < deadline;) {
    pollfd waiting[2] = {{handle, POLLIN, 0}, {process_.output(), POLLIN, 0}};
    poll(waiting, talks ? 2 : 1, Milliseconds(deadline));
    if (waiting[1].revents != 0) talks = ReadOutput();
    ended = waiting[0].revents != 0;
  }
  close(handle);
  if (!ended) return absl::DeadlineExceededError(absl::StrCat(name_, " did not end in time; output:\n", End(output())));
  output();
  process_.Reap();
  return process_.status().value_or(ExitStatus{true, 0});
}

absl::Status Program::Kill() {
  process_.Signal(SIGKILL);
  return AwaitEnd(absl::Seconds(30)).status();
}

void Program::Hear(absl::Span<Program* const> programs, absl::Time deadline) {
  std::vector<Program*> talking(programs.begin(), programs.end());
  do {
    std::vector<pollfd> waiting;
    for (Program* program : talking) waiting.push_back({program->process_.output(), POLLIN, 0});
    poll(waiting.data(), waiting.size(), Milliseconds(deadline));
    std::vector<Program*> still;
    for (size_t i = 0; i < talking.size(); ++i) {
      if (waiting[i].revents == 0 || talking[i]->ReadOutput()) still.push_back(talking[i]);
    }
    talking = std::move(still);
  } while (absl::Now() < deadline);
}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(std::string binary, const std::string& host,
                                                                    std::vector<std::string> flags) {
  std::unique_ptr<ServerProcess> server(new ServerProcess(std::move(binary), std::move(flags)));
  if (absl::Status status = server->Launch(host + ":0", absl::Seconds(30)); !status.ok()) return status;
  return server;
}

absl::Status ServerProcess::Launch(const std::string& listen, absl::Duration timeout) {
  std::vector<std::string> words = {binary_, "--listen", listen};
  words.insert(words.end(), flags_.begin(), flags_.end());
  program_.reset();
  auto program = Program::Start(std::move(words));
  if (!program.ok()) return program.status();
  program_ = *std::move(program);
  const absl::StatusOr<std::string> line = program_->AwaitLine(kServes, timeout);
  if (!line.ok()) return line.status();
  // Text after the address is not part of it.
  const size_t begin = line->find(kServes) + sizeof(kServes) - 1;
  address_ = line->substr(begin, line->find(' ', begin) - begin);
  return absl::OkStatus();
}

absl::Status ServerProcess::Restart(absl::Duration timeout) { return Launch(address_, timeout); }

absl::Status ServerProcess::End() {
  Signal(SIGTERM);
  const absl::StatusOr<ExitStatus> ended = program_->AwaitEnd(absl::Seconds(30));
  if (!ended.ok()) return ended.status();
  if (ended->ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("server on ", address_, " ", ended->ToString(), "; output:\n", output()));
}

}  // namespace ballast
