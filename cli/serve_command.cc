// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/command/command.h"
#include "cli/target/run_target.h"

namespace ballast {
namespace {

bool NamesDirectory(const std::string& word) {
  std::error_code ignored;
  return !absl::StartsWith(word, "-") && std::filesystem::is_directory(word, ignored);
}

void Add(const char* flag, const std::string& value, std::vector<std::string>& words) {
  if (!value.empty()) words.push_back(absl::StrCat("--", flag, "=", value));
}

// Returns the flags with which a model follows the job of a run; none once the run has ended.
absl::StatusOr<std::vector<std::string>> FollowFlags(const std::string& run) {
  const absl::StatusOr<Arguments> no_flags = Arguments::Parse(SecurityFlags(), {});
  if (!no_flags.ok()) return no_flags.status();
  const absl::StatusOr<RunTarget> target = FindRunTarget("serve", run, *no_flags);
  if (!target.ok()) return target.status();
  std::vector<std::string> flags;
  if (target->address.empty()) return flags;
  Add("coordinator", target->address, flags);
  Add("tls_ca", target->security.tls.authorities, flags);
  Add("tls_cert", target->security.tls.certificate, flags);
  Add("tls_key", target->security.tls.key, flags);
  Add("token_file", target->security.token_file, flags);
  if (target->security.insecure) flags.emplace_back("--insecure");
  return flags;
}

}  // namespace

// ballast_worker contains the layers and the devices, and parses the flags. Only the address and the credentials of a
// launch are found here.
CommandResult ServeCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  std::vector<std::string> words = {"serve"};
  const auto run = absl::c_find_if(args, NamesDirectory);
  const bool given =
      absl::c_any_of(args, [](absl::string_view word) { return absl::StartsWith(word, "--coordinator"); });
  if (run != args.end() && !given) {
    absl::StatusOr<std::vector<std::string>> flags = FollowFlags(*run);
    if (!flags.ok()) {
      return Fail(err, flags.status(), absl::IsUnavailable(flags.status()) ? kExitTemporary : kExitBadInput);
    }
    words.insert(words.end(), flags->begin(), flags->end());
  }
  return Become("worker", std::move(words), args, out, err);
}

}  // namespace ballast
