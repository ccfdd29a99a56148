// SPDX-License-Identifier: Apache-2.0
#include "common/program/env_flags.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/program/arguments.h"

namespace ballast {
namespace {

std::string Describe(absl::string_view usage, const std::vector<std::string>& names) {
  std::string text = absl::StrCat(usage, "\n\nFlags, each also from the environment as BALLAST_<FLAG>:\n");
  for (const std::string& name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    const std::string initial = flag->DefaultValue();
    absl::StrAppend(&text, "  --", name, initial.empty() ? "" : absl::StrCat(" (", initial, ")"), "\n      ",
                    flag->Help(), "\n");
  }
  return text;
}

absl::Status SetFlagsFromEnvironment(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    const std::string variable = absl::StrCat("BALLAST_", absl::AsciiStrToUpper(name));
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr) continue;
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment variable ", variable, ": got \"", value, "\": ", error));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseFlags(int argc, char** argv, absl::string_view usage, const std::vector<std::string>& names) {
  std::vector<FlagSpec> specs;
  for (const std::string& name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    const bool boolean = flag->IsOfType<bool>();
    specs.push_back({name, boolean ? "" : flag->Help(), "", boolean});
  }
  const absl::StatusOr<Arguments> arguments =
      Arguments::Parse(specs, std::vector<std::string>(argv + 1, argv + argc), /*last_counts=*/true);
  if (!arguments.ok()) return arguments.status();
  if (arguments->help()) {
    std::cout << Describe(usage, names);
    std::exit(0);
  }
  if (!arguments->positional().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", arguments->positional()[0], "\"; see --help"));
  }
  if (absl::Status status = SetFlagsFromEnvironment(names); !status.ok()) return status;
  for (const std::string& name : names) {
    const std::string value = arguments->Get(name, "");
    std::string error;
    if (arguments->Has(name) && !absl::FindCommandLineFlag(name)->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", name, ": got \"", value, "\": ", error));
    }
  }
  return absl::OkStatus();
}

int ParseRank(absl::string_view text) {
  int rank = -1;
  const size_t dash = text.rfind('-');
  if (dash != absl::string_view::npos) text.remove_prefix(dash + 1);
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &rank)) return -1;
  return rank;
}

}  // namespace ballast
