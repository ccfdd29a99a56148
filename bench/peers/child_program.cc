// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/child_program.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

constexpr size_t kLastWords = 1000;

}  // namespace

absl::StatusOr<ChildProgram> ChildProgram::Start(const std::vector<std::string>& argv) {
  absl::StatusOr<Process> process = Process::Start(argv);
  if (!process.ok()) return process.status();
  return ChildProgram(*std::move(process));
}

std::string ChildProgram::LastWords() const {
  const size_t skipped = said_.size() - std::min(said_.size(), kLastWords);
  const absl::string_view text = absl::StripAsciiWhitespace(absl::string_view(said_).substr(skipped));
  return text.empty() ? "" : absl::StrCat("; it said: ", text);
}

bool ChildProgram::Hear(absl::Duration timeout) {
  pollfd waiting = {process_.output(), POLLIN, 0};
  const int64_t milliseconds = std::max<int64_t>(0, absl::ToInt64Milliseconds(timeout));
  if (poll(&waiting, 1, static_cast<int>(milliseconds)) != 1) return true;
  char buffer[4096];
  const ssize_t got = read(process_.output(), buffer, sizeof(buffer));
  if (got > 0) said_.append(buffer, got);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

absl::StatusOr<ExitStatus> ChildProgram::HearToEnd(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  bool talks = true;
  while (talks && absl::Now() < deadline) talks = Hear(deadline - absl::Now());
  // It may have closed its output a moment before it exits.
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, pid(), 0));
  pollfd waiting = {handle, POLLIN, 0};
  const int64_t left = std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()));
  const bool ended = poll(&waiting, 1, static_cast<int>(left)) == 1;
  if (handle >= 0) close(handle);
  if (!ended || !process_.Reap()) {
    return absl::DeadlineExceededError(absl::StrCat("timed out after ", absl::FormatDuration(timeout),
                                                    " waiting for process ", pid(), " to exit", LastWords()));
  }
  return *process_.status();
}

}  // namespace ballast
