// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_page.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ballast {
namespace {

constexpr absl::Duration kStart = absl::Seconds(10);
constexpr absl::Duration kEnd = absl::Seconds(5);

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(duration)));
}

// Reads from a pipe until a line is complete, the pipe is closed or the deadline has passed. Returns what it read.
std::string ReadLine(int pipe, absl::Time deadline) {
  std::string text;
  while (text.find('\n') == text.npos) {
    pollfd wanted = {.fd = pipe, .events = POLLIN, .revents = 0};
    if (poll(&wanted, 1, Milliseconds(deadline - absl::Now())) <= 0) break;
    char buffer[1024];
    const ssize_t got = read(pipe, buffer, sizeof(buffer));
    if (got <= 0) break;
    text.append(buffer, got);
  }
  return std::string(absl::StripAsciiWhitespace(text));
}

}  // namespace

absl::StatusOr<LaunchPage> LaunchPage::Start(const std::string& program, const std::string& run_dir,
                                             std::ostream& err) {
  const std::vector<std::string> words = {program, "page", run_dir, "--end-with-run"};
  absl::StatusOr<Process> process = Process::StartConnected(words);
  if (!process.ok()) return process.status();
  const absl::Time deadline = absl::Now() + kStart;
  const std::string url = ReadLine(process->output(), deadline);
  if (url.empty()) {
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the page has no address after ", absl::FormatDuration(kStart)));
    }
    return absl::InternalError(absl::StrCat("the page did not start: ", ReadLine(process->errors(), deadline)));
  }
  err << "page: " << url << std::endl;
  return LaunchPage(*std::move(process));
}

LaunchPage::~LaunchPage() {
  if (process_.output() < 0 || process_.status().has_value()) return;
  process_.Signal(SIGTERM);
  // The pipe closes when the process ends.
  ReadLine(process_.output(), absl::Now() + kEnd);
}

}  // namespace ballast
