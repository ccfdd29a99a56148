// SPDX-License-Identifier: Apache-2.0
#include "cli/status_target.h"

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

absl::StatusOr<RunInfo> NewestRun() {
  absl::StatusOr<RunList> list = ListRuns(kRuns);
  if (!list.ok() || list->runs.empty()) {
    return absl::NotFoundError(
        absl::StrCat("status: there is no run under ", kRuns, "/; want a run directory or an address, host:port"));
  }
  return std::move(list->runs.front());
}

// Adds the address and the credentials of a run that is running.
absl::StatusOr<StatusTarget> TargetOf(RunInfo run) {
  StatusTarget target;
  if (run.state == RunState::kRunning) {
    target.address = AddressIn(CoordinatorAddressPath(run.directory));
    if (target.address.empty()) {
      return absl::UnavailableError(
          absl::StrCat("run ", run.directory, " is starting: its server 0 has not written its address yet; try again"));
    }
    // A launch with --insecure has none.
    const absl::StatusOr<SecurityOptions> security = LaunchSecurity::OfReader(run.directory);
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

absl::StatusOr<StatusTarget> FindStatusTarget(const Arguments& arguments) {
  const std::vector<std::string>& words = arguments.positional();
  if (words.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("status: got ", words.size(), " words, want one run directory or address, host:port; see --help"));
  }
  absl::StatusOr<SecurityOptions> security = ReadSecurity(arguments);
  if (!security.ok()) return security.status();
  const std::string word = words.empty() ? arguments.Get("run", "") : words[0];
  if (words.empty() && !arguments.Has("run")) {
    absl::StatusOr<RunInfo> newest = NewestRun();
    if (!newest.ok()) return newest.status();
    return TargetOf(*std::move(newest));
  }
  if (IsDirectory(word)) {
    absl::StatusOr<RunInfo> run = ReadRun(word);
    if (!run.ok()) return run.status();
    return TargetOf(*std::move(run));
  }
  if (!IsAddress(word)) {
    return absl::InvalidArgumentError(
        absl::StrCat("status: got \"", word, "\", want a run directory or an address, host:port"));
  }
  if (arguments.Has("run")) {
    security = LaunchSecurity::OfReader(arguments.Get("run", ""));
    if (!security.ok()) return security.status();
  }
  return StatusTarget{word, *std::move(security), std::nullopt};
}

absl::Status WithTokenHint(const absl::Status& error, const StatusTarget& target) {
  const bool may_lack = absl::IsUnauthenticated(error) || absl::IsUnavailable(error);
  if (!may_lack || target.run.has_value() || !target.security.token_file.empty()) return error;
  const std::string launch = LaunchOf(target.address);
  if (!launch.empty()) {
    return WithMessage(error, absl::StrCat(error.message(), "\nthe server belongs to the run ", launch,
                                           ", which requires the token in ", launch, "/security/reader.token: want ",
                                           "ballast status ", launch, ", or --run ", launch));
  }
  return WithMessage(
      error, absl::StrCat(error.message(), "\nif the server requires a token: ballast status RUN_DIR finds that of a ",
                          "launch (RUN_DIR/security/reader.token); for other servers give --token-file, --tls-ca, ",
                          "--tls-cert and --tls-key, with the files that ballast keys has written"));
}

}  // namespace ballast
