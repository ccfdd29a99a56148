// SPDX-License-Identifier: Apache-2.0
#include "common/program/env_flags.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

std::string Describe(absl::string_view usage, const std::vector<std::string>& names) {
  std::string text = absl::StrCat(usage, "\n\nFlags, each also from the environment as BALLAST_<FLAG>:\n");
  for (const std::string& name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) continue;
    const std::string initial = flag->DefaultValue();
    absl::StrAppend(&text, "  --", name, initial.empty() ? "" : absl::StrCat(" (", initial, ")"), "\n      ",
                    flag->Help(), "\n");
  }
  return text;
}

// Returns the flag's name in "--name=value", "--name" or "--noname"; empty for any other word.
absl::string_view FlagName(absl::string_view word) {
  if (!absl::StartsWith(word, "-")) return "";
  word.remove_prefix(absl::StartsWith(word, "--") ? 2 : 1);
  return word.substr(0, word.find('='));
}

absl::Status SetFlagsFromEnvironment(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    const std::string variable = absl::StrCat("BALLAST_", absl::AsciiStrToUpper(name));
    const char* value = std::getenv(variable.c_str());
    if (flag == nullptr || value == nullptr) continue;
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
  bool value_follows = false;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    if (value_follows) {
      value_follows = false;
      continue;
    }
    absl::string_view name = FlagName(word);
    if (name == "help" || name == "h") {
      std::cout << Describe(usage, names);
      std::exit(0);
    }
    if (name.empty()) return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", word, "\"; see --help"));
    auto known = [&](absl::string_view n) { return std::find(names.begin(), names.end(), n) != names.end(); };
    if (!known(name) && absl::StartsWith(name, "no") && known(name.substr(2))) continue;
    if (!known(name)) return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name, "; see --help"));
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    value_follows = word.find('=') == absl::string_view::npos && !flag->IsOfType<bool>();
    if (value_follows && i + 1 == argc) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", name, " wants a value"));
    }
  }
  if (absl::Status status = SetFlagsFromEnvironment(names); !status.ok()) return status;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    absl::string_view name = FlagName(word);
    std::string value = "true";
    if (size_t equals = word.find('='); equals != absl::string_view::npos) {
      value = std::string(word.substr(equals + 1));
    } else if (absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name); flag == nullptr) {
      name.remove_prefix(2);
      value = "false";
    } else if (!flag->IsOfType<bool>()) {
      value = argv[++i];
    }
    std::string error;
    if (!absl::FindCommandLineFlag(name)->ParseFrom(value, &error)) {
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
