// SPDX-License-Identifier: Apache-2.0
#include "cli/command/command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/program/this_process.h"

namespace ballast {
namespace {

// Null if the variable is not set.
const char* FromEnvironment(const std::string& flag) {
  return std::getenv(absl::StrCat("BALLAST_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}}))).c_str());
}

bool IsProgram(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

const std::vector<FlagSpec>& SecurityFlags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"tls-ca", "FILE", "CA certificates (PEM) that verify servers; enables TLS."},
      {"tls-cert", "FILE", "Client certificate (PEM), for servers that require one."},
      {"tls-key", "FILE", "Private key (PEM) of the certificate, in a file that only this user can read."},
      {"token-file", "FILE", "File with the token to send, in the form: reader JOB|* TOKEN."},
      {"insecure", "", "Connect to servers on other machines without TLS."},
  };
  return *flags;
}

absl::StatusOr<SecurityOptions> ReadSecurity(const Arguments& arguments) {
  SecurityOptions options;
  const std::pair<const char*, std::string*> paths[] = {{"tls-ca", &options.tls.authorities},
                                                        {"tls-cert", &options.tls.certificate},
                                                        {"tls-key", &options.tls.key},
                                                        {"token-file", &options.token_file}};
  for (const auto& [flag, path] : paths) {
    const char* const otherwise = FromEnvironment(flag);
    *path = arguments.Get(flag, otherwise == nullptr ? "" : otherwise);
    if (arguments.Has(flag) && path->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": got \"\", want a file name"));
    }
  }
  options.insecure = arguments.Has("insecure");
  const char* const insecure = FromEnvironment("insecure");
  if (insecure != nullptr && !options.insecure && !absl::SimpleAtob(insecure, &options.insecure)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable BALLAST_INSECURE: got \"", insecure, "\", want true or false"));
  }
  return options;
}

absl::StatusOr<std::string> FindBinary(const std::string& role, const std::string& own_path) {
  const std::string variable = absl::StrCat("BALLAST_", absl::AsciiStrToUpper(role), "_BINARY");
  if (const char* named = std::getenv(variable.c_str()); named != nullptr && *named != '\0') {
    if (IsProgram(named)) return std::string(named);
    return absl::NotFoundError(
        absl::StrCat("environment variable ", variable, ": ", named, " is not an executable file"));
  }
  const std::string name = absl::StrCat("ballast_", role);
  const std::filesystem::path folder = std::filesystem::path(own_path).parent_path();
  std::vector<std::string> places = {(folder / name).string(), (folder.parent_path() / role / name).string()};
  if (const char* path = std::getenv("PATH"); path != nullptr) {
    for (absl::string_view place : absl::StrSplit(path, ':', absl::SkipEmpty())) {
      places.push_back(absl::StrCat(place, "/", name));
    }
  }
  for (const std::string& place : places) {
    if (IsProgram(place)) return place;
  }
  return absl::NotFoundError(absl::StrCat("cannot find ", name, ": it is neither ", places[0], " nor ", places[1],
                                          " nor on PATH; build it with `bazel build //", role, ":", name, "` or set ",
                                          variable));
}

std::string VersionText() { return absl::StrCat("ballast ", kVersion, " (wire protocol ", kProtocolVersion, ")"); }

std::string OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

CommandResult Become(const std::string& role, std::vector<std::string> words, absl::Span<const std::string> args,
                     std::ostream& out, std::ostream& err) {
  const absl::StatusOr<std::string> program = FindBinary(role, OwnPath());
  if (!program.ok()) return Fail(err, program.status(), kExitFailure);
  words.insert(words.begin(), *program);
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  out.flush();
  err.flush();
  execv(program->c_str(), argv.data());
  return Fail(err, absl::ErrnoToStatus(errno, absl::StrCat("cannot run ", *program)), kExitFailure);
}

// ballast_bench contains the benchmarks and parses their flags.
CommandResult BenchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  return Become("bench", {}, args, out, err);
}

// ballast_worker contains the layers and the devices, and parses the flags.
CommandResult PredictCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  return Become("worker", {"predict"}, args, out, err);
}

CommandResult EvalCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  return Become("worker", {"eval"}, args, out, err);
}

}  // namespace ballast
