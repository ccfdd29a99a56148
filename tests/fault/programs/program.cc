// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/programs/program.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

constexpr size_t kMaxOutput = 1 << 20;

int Milliseconds(absl::Time until) {
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(until - absl::Now())));
}

// Returns as much of the end of the output as an error should hold.
absl::string_view End(absl::string_view output) {
  return output.substr(output.size() - std::min<size_t>(output.size(), 2000));
}

}  // namespace

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

}  // namespace ballast
