// SPDX-License-Identifier: Apache-2.0
#include "cli/target/run_target.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/command/command.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/launch_security.h"
#include "common/status/error_reason.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

bool IsAddress(const std::string& word) {
  const size_t colon = word.rfind(':');
  int port = 0;
  return colon != std::string::npos && colon > 0 && absl::SimpleAtoi(word.substr(colon + 1), &port) && port > 0 &&
         port < 65536;
}

bool IsDirectory(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::string AddressIn(const std::string& path) {
  return std::string(absl::StripAsciiWhitespace(ReadFile(path).value_or("")));
}

absl::StatusOr<RunInfo> NewestRun(absl::string_view command) {
  absl::StatusOr<RunList> list = ListRuns(kRuns);
  if (!list.ok() || list->runs.empty()) {
    return absl::NotFoundError(
        absl::StrCat(command, ": there is no run under ", kRuns, "/; want a run directory or an address, host:port"));
  }
  return std::move(list->runs.front());
}

absl::StatusOr<SecurityOptions> SecurityOf(const std::string& run_dir, RunAccess access) {
  return access == RunAccess::kAdmin ? LaunchSecurity::OfAdmin(run_dir) : LaunchSecurity::OfReader(run_dir);
}

// Adds the address and the credentials of a run that is running.
absl::StatusOr<RunTarget> TargetOf(RunInfo run, RunAccess access) {
  RunTarget target;
  if (run.state == RunState::kRunning) {
    target.address = AddressIn(CoordinatorAddressPath(run.directory));
    if (target.address.empty()) {
      return absl::UnavailableError(
          absl::StrCat("run ", run.directory, " is starting: its server 0 has not written its address yet; try again"));
    }
    // A launch with --insecure has none.
    const absl::StatusOr<SecurityOptions> security = SecurityOf(run.directory, access);
    if (security.ok()) target.security = *security;
  }
  target.run = std::move(run);
  return target;
}

// Returns the running launch under kRuns that started the server at an address; empty if there is none.
std::string LaunchOf(const std::string& address) {
  const absl::StatusOr<RunList> list = ListRuns(kRuns);
  if (!list.ok()) return "";
  for (const RunInfo& run : list->runs) {
    if (run.state != RunState::kRunning) continue;
    std::error_code error;
    for (std::filesystem::directory_iterator file(absl::StrCat(run.directory, "/logs"), error), end;
         !error && file != end; file.increment(error)) {
      const std::string kind = file->path().extension().string();
      if ((kind == ".address" || kind == ".control") && AddressIn(file->path().string()) == address) {
        return run.directory;
      }
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<RunTarget> FindRunTarget(absl::string_view command, const std::optional<std::string>& named,
                                        const Arguments& arguments, RunAccess access) {
  absl::StatusOr<SecurityOptions> security = ReadSecurity(arguments);
  if (!security.ok()) return security.status();
  const std::string word = named.value_or(arguments.Get("run", ""));
  if (!named.has_value() && !arguments.Has("run")) {
    absl::StatusOr<RunInfo> newest = NewestRun(command);
    if (!newest.ok()) return newest.status();
    return TargetOf(*std::move(newest), access);
  }
  if (IsDirectory(word)) {
    absl::StatusOr<RunInfo> run = ReadRun(word);
    if (!run.ok()) return run.status();
    return TargetOf(*std::move(run), access);
  }
  if (!IsAddress(word)) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, ": got \"", word, "\", want a run directory or an address, host:port"));
  }
  if (arguments.Has("run")) {
    security = SecurityOf(arguments.Get("run", ""), access);
    if (!security.ok()) return security.status();
  }
  return RunTarget{word, *std::move(security), std::nullopt};
}

absl::StatusOr<RunTarget> FindRunningTarget(absl::string_view command, const std::string& word,
                                            const Arguments& arguments, RunAccess access) {
  absl::StatusOr<RunTarget> target = FindRunTarget(command, word, arguments, access);
  if (!target.ok() || !target->address.empty()) return target;
  return absl::InvalidArgumentError(
      absl::StrCat(command, ": the run ", target->run->directory, " has ended, want one that is running"));
}

absl::Status WithTokenHint(absl::string_view command, const absl::Status& error, const RunTarget& target) {
  const bool may_lack = absl::IsUnauthenticated(error) || absl::IsUnavailable(error);
  if (!may_lack || target.run.has_value() || !target.security.token_file.empty()) return error;
  const std::string launch = LaunchOf(target.address);
  if (!launch.empty()) {
    return WithMessage(error, absl::StrCat(error.message(), "\nthe server belongs to the run ", launch,
                                           ", which requires the token in ", launch, "/security/reader.token: want ",
                                           "ballast ", command, " ", launch, ", or --run ", launch));
  }
  return WithMessage(
      error,
      absl::StrCat(error.message(), "\nif the server requires a token: ballast ", command, " RUN_DIR finds that of a ",
                   "launch (RUN_DIR/security/reader.token); for other servers give --token-file, --tls-ca, ",
                   "--tls-cert and --tls-key, with the files that ballast keys has written"));
}

}  // namespace ballast
