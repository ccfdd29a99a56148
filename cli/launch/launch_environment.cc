// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

constexpr const char* kNoFlags[] = {"BALLAST_SERVER_BINARY", "BALLAST_WORKER_BINARY", "BALLAST_BENCH_BINARY",
                                    "BALLAST_EMULATED_GPU",  "BALLAST_LIBRARY",       "BALLAST_INSTRUCTION_SET"};

// The names and values of Ballast's variables, in the order of their names.
std::vector<std::pair<std::string, std::string>> Variables() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> variable = absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    if (!absl::StartsWith(variable.first, "BALLAST_")) continue;
    if (std::find(std::begin(kNoFlags), std::end(kNoFlags), variable.first) == std::end(kNoFlags)) {
      variables.push_back(variable);
    }
  }
  std::sort(variables.begin(), variables.end());
  return variables;
}

const FlagSpec* FindFlag(absl::Span<const FlagSpec> flags, const std::string& variable) {
  const std::string name = absl::AsciiStrToLower(absl::StrReplaceAll(variable.substr(8), {{"_", "-"}}));
  const auto found = std::find_if(flags.begin(), flags.end(), [&](const FlagSpec& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

// Returns the word that sets the flag; empty for a switch that is off.
std::string Word(const FlagSpec& flag, const std::string& value) {
  if (!flag.value.empty()) return absl::StrCat("--", flag.name, "=", value);
  bool on = false;
  // The error of a switch that gets a value names it.
  if (!absl::SimpleAtob(value, &on)) return absl::StrCat("--", flag.name, "=", value);
  return on ? absl::StrCat("--", flag.name) : "";
}

}  // namespace

EnvironmentFlags TakeEnvironmentFlags(absl::Span<const FlagSpec> flags, absl::Span<const std::string> words) {
  EnvironmentFlags taken;
  // If the command line is wrong, its own error is shown.
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(flags, words);
  std::vector<std::string> ignored;
  for (const auto& [name, value] : Variables()) {
    unsetenv(name.c_str());
    const FlagSpec* const flag = FindFlag(flags, name);
    if (flag == nullptr) {
      ignored.push_back(name);
      continue;
    }
    if (!arguments.ok() || arguments->Has(flag->name)) continue;
    const std::string word = Word(*flag, value);
    if (word.empty()) continue;
    taken.words.push_back(word);
    taken.lines.push_back(absl::StrCat("the environment variable ", name, " sets ", word));
  }
  if (!ignored.empty()) {
    taken.lines.push_back(absl::StrCat("warning: ", absl::StrJoin(ignored, ", "),
                                       " in the environment: ignored, because launch has no such flag"));
  }
  return taken;
}

std::vector<std::string> WithEnvironment(absl::Span<const FlagSpec> flags, absl::Span<const std::string> words,
                                         std::ostream& err) {
  EnvironmentFlags environment = TakeEnvironmentFlags(flags, words);
  for (const std::string& line : environment.lines) err << line << std::endl;
  std::vector<std::string> all = std::move(environment.words);
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

}  // namespace ballast
