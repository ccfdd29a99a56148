// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/command/command.h"
#include "common/status/error_reason.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

std::string ReasonName(const absl::Status& status) {
  // This code implies no reason, so only one that a server has set remains.
  absl::Status explicit_only(absl::StatusCode::kFailedPrecondition, "");
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { explicit_only.SetPayload(url, payload); });
  const v1::ErrorReason reason = ReasonOf(explicit_only);
  if (reason == v1::ERROR_REASON_UNSPECIFIED) return absl::StatusCodeToString(status.code());
  return std::string(absl::StripPrefix(v1::ErrorReason_Name(reason), "ERROR_REASON_"));
}

}  // namespace

bool AsksForJson(absl::Span<const std::string> args) {
  for (const std::string& word : args) {
    if (word == "--") return false;
    if (word == "--json" || word == "-json") return true;
  }
  return false;
}

std::string FailureJson(const CommandResult& result, absl::string_view printed) {
  Json object = ParseJsonObject(printed).value_or(Json::object());
  object["error"] =
      result.error.ok() ? absl::StrCat("exit code ", result.exit_status) : std::string(result.error.message());
  object["reason"] = result.error.ok() ? "UNKNOWN" : ReasonName(result.error);
  object["exit_code"] = result.exit_status;
  return JsonLine(object);
}

CommandResult RunWithJson(const Command& command, absl::Span<const std::string> args, std::ostream& out,
                          std::ostream& err) {
  // A command that becomes another program, which parses the flags, returns only if that fails.
  const bool known = command.flags == nullptr ||
                     std::ranges::any_of(command.flags(), [](const FlagSpec& flag) { return flag.name == "json"; });
  if (!known || !AsksForJson(args)) return command.run(args, out, err);
  if (command.streams) {
    CommandResult result = command.run(args, out, err);
    if (result.exit_status != kExitSuccess) out << FailureJson(result, "") << std::endl;
    return result;
  }
  std::ostringstream printed;
  CommandResult result = command.run(args, printed, err);
  const bool failed = result.exit_status != kExitSuccess;
  // Flushed, because a pipe's reader waits for it.
  out << (failed ? FailureJson(result, printed.str()) + "\n" : printed.str()) << std::flush;
  return result;
}

}  // namespace ballast
