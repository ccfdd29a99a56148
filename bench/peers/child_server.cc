// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/child_server.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/command/command.h"

namespace ballast {
namespace {

constexpr absl::Duration kStart = absl::Seconds(15);
constexpr absl::Duration kPoll = absl::Milliseconds(10);

constexpr size_t kLastWords = 1000;

// Returns the bytes in a line like "VmHWM:  12 kB" with that label.
std::optional<uint64_t> BytesIn(absl::string_view line, absl::string_view label) {
  uint64_t kibibytes = 0;
  const bool found =
      absl::ConsumePrefix(&line, label) && absl::ConsumeSuffix(&line, " kB") && absl::SimpleAtoi(line, &kibibytes);
  return found ? std::make_optional(kibibytes * 1024) : std::nullopt;
}

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

absl::StatusOr<ScratchFolder> ScratchFolder::Create() {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "ballast-bench-XXXXXX").string();
  if (error) path = "/tmp/ballast-bench-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create a directory like ", path));
  }
  return ScratchFolder(path);
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<ChildServer> ChildServer::Start(std::vector<std::string> argv, const ScratchFolder& folder) {
  const std::string file = absl::StrCat(folder.path(), "/address");
  std::filesystem::remove(file);
  argv.insert(argv.end(), {"--address_file", file});
  absl::StatusOr<ChildProgram> program = ChildProgram::Start(argv);
  if (!program.ok()) return program.status();
  const absl::Time deadline = absl::Now() + kStart;
  bool talks = true;
  while (talks && absl::Now() < deadline) {
    talks = program->Hear(kPoll);
    // The file is renamed into place, so it is complete as soon as it exists.
    std::string address;
    if (std::getline(std::ifstream(file), address) && !address.empty()) {
      return ChildServer(*std::move(program), address);
    }
  }
  if (const absl::StatusOr<ExitStatus> end = program->HearToEnd(deadline - absl::Now()); end.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(argv[0], " ", end->ToString(), program->LastWords()));
  }
  return absl::DeadlineExceededError(
      absl::StrCat(argv[0], ": timed out after 15 s waiting for it to serve", program->LastWords()));
}

double ChildServer::CpuSeconds() const {
  std::ostringstream text;
  text << std::ifstream(absl::StrCat("/proc/", program_.pid(), "/stat")).rdbuf();
  // The second field, the name, is in parentheses and may contain anything; utime and stime are the 14th and 15th.
  const std::string all = text.str();
  const std::vector<std::string> fields = absl::StrSplit(all.substr(all.rfind(')') + 1), ' ', absl::SkipEmpty());
  double user = 0, system = 0;
  if (fields.size() < 13 || !absl::SimpleAtod(fields[11], &user) || !absl::SimpleAtod(fields[12], &system)) return 0;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

uint64_t ChildServer::PeakMemoryBytes() const {
  std::ifstream status(absl::StrCat("/proc/", program_.pid(), "/status"));
  uint64_t peak = 0, borrowed = 0;
  for (std::string line; std::getline(status, line);) {
    if (const std::optional<uint64_t> bytes = BytesIn(line, "VmHWM:"); bytes.has_value()) peak = *bytes;
  }
  // Each mapping has a line like "7f10-7f20 r--s 0000 00:01 42 /memfd:name", then lines of its figures.
  std::ifstream mappings(absl::StrCat("/proc/", program_.pid(), "/smaps"));
  bool of_others = false;
  for (std::string line; std::getline(mappings, line);) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() >= 5 && absl::StrContains(words[0], '-')) of_others = words[1] == "r--s";
    if (!of_others) continue;
    if (const std::optional<uint64_t> bytes = BytesIn(line, "Rss:"); bytes.has_value()) borrowed += *bytes;
  }
  return peak - std::min(peak, borrowed);
}

absl::StatusOr<std::vector<ChildServer>> StartServers(int servers, int workers, const ScratchFolder& folder,
                                                      const std::vector<std::string>& flags) {
  const absl::StatusOr<std::string> binary = FindBinary("server", OwnPath());
  if (!binary.ok()) return binary.status();
  std::vector<ChildServer> started;
  for (int rank = 0; rank < servers; ++rank) {
    std::vector<std::string> argv = {*binary, "--rank", absl::StrCat(rank), "--listen", "127.0.0.1:0"};
    argv.insert(argv.end(), {"--servers", absl::StrCat(servers), "--workers", absl::StrCat(workers)});
    argv.insert(argv.end(), flags.begin(), flags.end());
    if (rank > 0) argv.insert(argv.end(), {"--coordinator", started[0].address()});
    absl::StatusOr<ChildServer> server = ChildServer::Start(std::move(argv), folder);
    if (!server.ok()) return server.status();
    started.push_back(*std::move(server));
  }
  return started;
}

double CpuSecondsOf(absl::Span<const ChildServer> children) {
  double sum = 0;
  for (const ChildServer& child : children) sum += child.CpuSeconds();
  return sum;
}

double CpuSecondsWith(absl::Span<const ChildServer> children) {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime) + CpuSecondsOf(children);
}

}  // namespace ballast
