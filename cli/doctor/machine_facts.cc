// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/machine_facts.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/command/binary_finder.h"
#include "cli/launch/supervisor.h"

namespace ballast {
namespace {

constexpr char kDataset[] = "/usr/share/datasets/fashion-mnist";

// Returns the value after "key   :" in a file of /proc; empty if there is no such line.
std::string ReadProcLine(const char* path, absl::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, key)) continue;
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (absl::ConsumePrefix(&rest, ":")) return std::string(absl::StripAsciiWhitespace(rest));
  }
  return "";
}

uint64_t ReadKibibytes(absl::string_view key) {
  uint64_t number = 0;
  const std::string text = ReadProcLine("/proc/meminfo", key);
  return absl::SimpleAtoi(absl::StripSuffix(text, " kB"), &number) ? number * 1024 : 0;
}

// Keeps the last output of one child and its exit status.
class LastOutput : public ProcessListener {
 public:
  void OnOutput(int, absl::string_view bytes) override {
    absl::StrAppend(&text_, bytes);
    if (text_.size() > kMaxBytes) text_.erase(0, text_.size() - kMaxBytes);
  }
  void OnEnd(int, const ExitStatus& status) override { end_ = status; }
  void OnSignal(int) override { interrupted_ = true; }

  bool done() const { return end_.has_value() || interrupted_; }
  absl::Status Judge() const {
    if (!end_.has_value()) return absl::DeadlineExceededError("timed out after 5 s running --help");
    if (end_->ok()) return absl::OkStatus();
    const std::vector<std::string> lines = absl::StrSplit(text_, '\n', absl::SkipWhitespace());
    return absl::UnknownError(
        absl::StrCat(end_->ToString(), lines.empty() ? "" : ": ", lines.empty() ? "" : lines.back()));
  }

 private:
  static constexpr size_t kMaxBytes = 4096;
  std::string text_;
  std::optional<ExitStatus> end_;
  bool interrupted_ = false;
};

}  // namespace

CpuFacts ProbeCpu() {
  CpuFacts cpu;
  cpu.model = ReadProcLine("/proc/cpuinfo", "model name");
  cpu.cores = static_cast<int>(std::thread::hardware_concurrency());
  const std::string flags = absl::StrCat(" ", ReadProcLine("/proc/cpuinfo", "flags"), " ");
  cpu.avx2 = absl::StrContains(flags, " avx2 ");
  cpu.avx512 = absl::StrContains(flags, " avx512f ");
  return cpu;
}

MemoryFacts ProbeMemory() { return {ReadKibibytes("MemTotal"), ReadKibibytes("MemAvailable")}; }

std::string ProbeBlas() {
  void* library = dlopen("libopenblas.so.0", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "";
  auto config = reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_config"));
  return config == nullptr ? "OpenBLAS" : std::string(absl::StripAsciiWhitespace(config()));
}

absl::Status ProbeLoopback() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return absl::ErrnoToStatus(errno, "cannot open a socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool works =
      bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(listener, 1) == 0;
  const int error = errno;
  close(listener);
  return works ? absl::OkStatus() : absl::ErrnoToStatus(error, "cannot listen on 127.0.0.1");
}

ProgramFacts ProbeProgram(const std::string& role) {
  ProgramFacts program;
  const absl::StatusOr<std::string> path = FindBinary(role, OwnPath());
  if (!path.ok()) return {"", path.status()};
  program.path = *path;
  LastOutput output;
  absl::StatusOr<std::unique_ptr<Supervisor>> supervisor = Supervisor::Create(&output);
  if (!supervisor.ok()) return {*path, supervisor.status()};
  if (auto child = (*supervisor)->Start({*path, "--help"}); !child.ok()) return {*path, child.status()};
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (!output.done() && absl::Now() < deadline) (*supervisor)->Poll(deadline - absl::Now());
  program.starts = output.Judge();
  return program;
}

uint64_t ProbeDiskBytes() {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(".", error);
  return error ? 0 : space.available;
}

std::string ProbeDataset() {
  std::error_code ignored;
  const bool there = std::filesystem::exists(absl::StrCat(kDataset, "/train-images-idx3-ubyte.gz"), ignored);
  return there ? kDataset : "";
}

}  // namespace ballast
