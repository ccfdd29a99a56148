// SPDX-License-Identifier: Apache-2.0
#include "common/program/env_flags.h"

#include <cstdlib>
#include <iostream>

#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
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

// Sets the flag; `object` names it in the error.
absl::Status SetFlag(absl::CommandLineFlag* flag, const std::string& value, absl::string_view object) {
  std::string error;
  if (flag->ParseFrom(value, &error)) return absl::OkStatus();
  const absl::string_view want = flag->IsOfType<bool>()     ? "true or false"
                                 : flag->IsOfType<double>() ? "a number"
                                 : flag->IsOfType<int>()    ? "a whole number"
                                                            : "a whole number from 0 to 4294967295";
  return absl::InvalidArgumentError(absl::StrCat(object, ": got \"", value, "\", want ", want));
}

absl::Status SetFlagsFromEnvironment(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string variable = absl::StrCat("BALLAST_", absl::AsciiStrToUpper(name));
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr) continue;
    const std::string object = absl::StrCat("environment variable ", variable);
    if (absl::Status set = SetFlag(absl::FindCommandLineFlag(name), value, object); !set.ok()) return set;
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
    if (!arguments->Has(name)) continue;
    const std::string value = arguments->Get(name, "");
    absl::Status set = SetFlag(absl::FindCommandLineFlag(name), value, absl::StrCat("flag --", name));
    if (!set.ok()) return set;
  }
  return absl::OkStatus();
}

}  // namespace ballast
