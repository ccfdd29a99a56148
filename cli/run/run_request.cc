// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_request.h"

#include <arpa/inet.h>
#include <google/protobuf/text_format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/command/command.h"
#include "cli/launch/placement.h"
#include "common/job/job_overrides.h"

namespace ballast {
namespace {

// Flags of `ballast launch` that mean the same here.
constexpr const char* kSharedFlags[] = {
    "servers",     "workers",        "mode",         "steps-ahead", "quorum",   "local-steps", "codec",
    "value-codec", "durability",     "threads",      "hosts",       "rsh",      "remote-bin",  "run-dir",
    "resume",      "gather-timeout", "max-restarts", "chaos",       "insecure", "json",        "verbose"};
constexpr size_t kMaxName = 63;
// MASTER_PORT of torchrun, if the free ports of worker 0's host are not known.
constexpr int kMasterPort = 29500;

bool IsExecutable(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

absl::Status CheckProgram(const std::string& program) {
  if (absl::StrContains(program, "=") || absl::StartsWith(program, "-")) {
    return absl::InvalidArgumentError(absl::StrCat("run: got \"", program, "\" after --, want a program's name"));
  }
  if (absl::StrContains(program, "/")) {
    if (IsExecutable(program)) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("run: ", program, " is not an executable file"));
  }
  const char* const path = std::getenv("PATH");
  for (absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty())) {
    if (IsExecutable(absl::StrCat(folder, "/", program))) return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("run: there is no program ", program, " on PATH"));
}

// Returns a port that is free now, for the program's own use; torchrun's default if none is known.
int FreePort() {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return kMasterPort;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(descriptor);
  return bound ? ntohs(address.sin_port) : kMasterPort;
}

// Returns the directory that contains the Python package of this build; empty if there is none.
std::string PythonPath(const std::string& own_path) {
  const std::filesystem::path folder = std::filesystem::path(own_path).parent_path();
  // In a wheel, the programs are in the package; in a build, in another folder of the same root.
  for (const std::filesystem::path& package : {folder.parent_path(), folder.parent_path() / "python" / "ballast"}) {
    std::error_code error;
    if (std::filesystem::exists(package / "libballast.so", error)) return package.parent_path().string();
  }
  return "";
}

std::string TextOf(const google::protobuf::Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(message, &text);
  return std::string(absl::StripAsciiWhitespace(text));
}

// Adds the variables that all workers have alike.
void AddVariables(const v1::Job& job, const std::string& own_path, LaunchPlan& plan) {
  std::vector<std::string>& variables = plan.program_variables;
  variables.push_back(absl::StrCat("MASTER_PORT=", HasOtherHosts(plan) ? kMasterPort : FreePort()));
  variables.push_back(absl::StrCat("BALLAST_JOB=", job.name()));
  // An empty policy is one without a mode.
  if (const std::string policy = TextOf(job.policy()); !policy.empty()) {
    variables.push_back(absl::StrCat("BALLAST_POLICY=", policy));
  }
  if (job.has_codec()) variables.push_back(absl::StrCat("BALLAST_CODEC=", TextOf(job.codec())));
  variables.push_back(absl::StrCat("BALLAST_DURABILITY=", DurabilityName(job.durability().mode())));
  const std::string package = PythonPath(own_path);
  if (package.empty()) return;
  const char* const before = std::getenv("PYTHONPATH");
  const bool adds = before != nullptr && *before != '\0';
  variables.push_back(absl::StrCat("PYTHONPATH=", adds ? absl::StrCat(before, ":") : "", package));
}

}  // namespace

const std::vector<FlagSpec>& RunFlags() {
  static const auto* flags = [] {
    auto* all = new std::vector<FlagSpec>();
    for (const FlagSpec& flag : LaunchFlags()) {
      if (std::count(std::begin(kSharedFlags), std::end(kSharedFlags), flag.name) > 0) all->push_back(flag);
    }
    for (FlagSpec& flag : *all) {
      if (flag.name == "mode") {
        flag.help = "Consistency mode: sync, async, bounded or local_sgd (default: that of the program's connect()).";
      }
    }
    all->push_back({"job", "NAME", "Name of the job (default: the name of the script or program)."});
    return all;
  }();
  return *flags;
}

std::string JobNameOf(absl::Span<const std::string> program) {
  const auto script =
      std::find_if(program.begin(), program.end(), [](const std::string& word) { return absl::EndsWith(word, ".py"); });
  if (program.empty()) return "program";
  const std::filesystem::path path = script == program.end() ? program[0] : *script;
  std::string name;
  for (char c : absl::AsciiStrToLower(path.stem().string())) {
    name += absl::ascii_isalnum(c) || c == '-' ? c : '_';
  }
  if (name.empty() || !absl::ascii_islower(name[0])) name = absl::StrCat("job_", name);
  return name.substr(0, kMaxName);
}

absl::StatusOr<LaunchRequest> ReadRunRequest(const Arguments& arguments, const std::string& own_path) {
  const std::vector<std::string>& program = arguments.positional();
  if (program.empty()) {
    return absl::InvalidArgumentError(
        "run: got no program, want one after --, such as: ballast run -- python3 train.py");
  }
  if (absl::Status status = CheckProgram(program[0]); !status.ok()) return status;
  LaunchRequest request;
  LaunchPlan& plan = request.plan;
  if (absl::Status status = ReadCommonFlags(arguments, request); !status.ok()) return status;
  const absl::StatusOr<JobOverrides> overrides = ReadOverrides(arguments);
  if (!overrides.ok()) return overrides.status();
  v1::Job job;
  job.set_name(arguments.Get("job", JobNameOf(program)));
  if (JobNameOf({job.name()}) != job.name()) {
    return absl::InvalidArgumentError(absl::StrCat("flag --job: got \"", job.name(), "\", want a-z, 0-9, _ and -, ",
                                                   "beginning with a letter, at most ", kMaxName, " characters"));
  }
  absl::StatusOr<v1::Job> overridden = Override(std::move(job), *overrides, plan.workers);
  if (!overridden.ok()) return overridden.status();
  request.job = *std::move(overridden);
  plan.job = request.job.name();
  plan.durability = request.job.durability();
  if (absl::Status status = CheckChaos(plan); !status.ok()) return status;
  if (absl::Status status = ReadResume(arguments, request); !status.ok()) return status;
  plan.program = program;
  std::error_code error;
  plan.program_directory = std::filesystem::current_path(error).string();
  if (error) return absl::ErrnoToStatus(error.value(), "run: the working directory");
  AddVariables(request.job, own_path, plan);
  if (HasOtherHosts(plan)) {
    for (const std::string& word : program) {
      if (std::filesystem::is_regular_file(word, error)) {
        plan.inputs.push_back(std::filesystem::absolute(word, error).lexically_normal().string());
      }
    }
  }
  return request;
}

}  // namespace ballast
