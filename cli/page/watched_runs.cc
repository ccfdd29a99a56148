// SPDX-License-Identifier: Apache-2.0
#include "cli/page/watched_runs.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/command/command.h"
#include "cli/command/server_connection.h"
#include "cli/report/run_catalog.h"
#include "cli/target/run_target.h"
#include "common/rpc/credentials.h"
#include "common/run/launch_record.h"

namespace ballast {
namespace {

// Each run has colors of its own.
constexpr size_t kMaxRuns = 8;
constexpr absl::Duration kTimeout = absl::Seconds(5);

absl::StatusOr<RunWatch::Options> ReadAddress(const std::string& command, const std::optional<std::string>& word,
                                              const Arguments& arguments) {
  absl::StatusOr<RunTarget> target = FindRunTarget(command, word, arguments);
  if (!target.ok() && !(absl::IsUnavailable(target.status()) && !word.has_value())) return target.status();
  if (!target.ok() || target->run.has_value()) {
    // The newest run; it may just be starting.
    if (target.ok()) return RunWatch::Options{.directory = target->run->directory};
    return target.status();
  }
  const absl::StatusOr<Credentials> credentials = Credentials::Load(target->security);
  if (!credentials.ok()) return credentials.status();
  if (absl::Status status = credentials->CheckTarget(target->address); !status.ok()) return status;
  const auto server = ServerConnection::Open(target->address, *credentials, /*patient=*/false, "");
  if (const auto shard = server->GetStatus(kTimeout); !shard.ok()) {
    return WithTokenHint(command, shard.status(), *target);
  }
  return RunWatch::Options{.address = target->address, .security = target->security};
}

absl::StatusOr<RunWatch::Options> ReadWord(const std::string& command, const std::optional<std::string>& word,
                                           const Arguments& arguments) {
  std::error_code ignored;
  if (!word.has_value() || !std::filesystem::is_directory(*word, ignored)) return ReadAddress(command, word, arguments);
  if (!HoldsRun(*word)) {
    return absl::NotFoundError(absl::StrCat(
        "run directory ", *word, ": has none of launch.json, job.textproto, metrics.jsonl and summary.json"));
  }
  const absl::StatusOr<LaunchState> launch = LaunchRecord::Read(*word);
  if (!launch.ok() && !absl::IsNotFound(launch.status())) return launch.status();
  return RunWatch::Options{.directory = *word};
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<RunWatch>>> FindRuns(const std::string& command, const Arguments& arguments,
                                                                bool record) {
  std::vector<std::optional<std::string>> words(arguments.positional().begin(), arguments.positional().end());
  if (words.empty()) words.emplace_back();
  if (words.size() > kMaxRuns) {
    return absl::InvalidArgumentError(absl::StrCat(command, ": got ", words.size(), " runs, want at most ", kMaxRuns));
  }
  std::vector<std::unique_ptr<RunWatch>> runs;
  for (const std::optional<std::string>& word : words) {
    absl::StatusOr<RunWatch::Options> options = ReadWord(command, word, arguments);
    if (!options.ok()) return options.status();
    options->record = record;
    runs.push_back(std::make_unique<RunWatch>(*std::move(options)));
  }
  return runs;
}

int ExitStatusOf(const absl::Status& error) {
  const bool bad = absl::IsInvalidArgument(error) || absl::IsNotFound(error) || absl::IsPermissionDenied(error) ||
                   absl::IsFailedPrecondition(error);
  return bad ? kExitBadInput : kExitFailure;
}

}  // namespace ballast
