// SPDX-License-Identifier: Apache-2.0
#include "cli/command/completion.h"

#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

constexpr char kHead[] = R"(# Completion of ballast for bash; printed by: ballast completion bash
_ballast_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
# The flags of a command that is part of another program.
_ballast_flags() { "${COMP_WORDS[0]}" "$1" --help 2>/dev/null | sed -n '/^  --help/d; s/^  \(--[a-z-]*\).*/\1/p'; }
_ballast_files() {
  compopt -o filenames 2>/dev/null || true
  mapfile -t COMPREPLY < <(compgen "$@" -- "$cur"; [[ $# == 1 ]] || compgen -d -- "$cur")
}
_ballast() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
  # Bash splits --flag=value into three words.
  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi
  COMPREPLY=()
)";

constexpr char kTail[] = R"(}
complete -F _ballast ballast
)";

// Returns the call that completes a value with this placeholder; "return" if it can be anything.
std::string Completer(const std::string& placeholder) {
  if (absl::StrContains(placeholder, '|')) {
    // Capitals stand for values.
    const auto literal = [](absl::string_view word) { return !word.empty() && !absl::ascii_isupper(word[0]); };
    const std::vector<std::string> words = absl::StrSplit(placeholder, '|', literal);
    return absl::StrCat("_ballast_words '", absl::StrJoin(words, " "), "'; return");
  }
  if (placeholder == "JOB") return "_ballast_files -f -X '!*.textproto'; return";
  if (absl::StrContains(placeholder, "DIR")) return "_ballast_files -d; return";
  if (placeholder == "FILE" || placeholder == "MODEL_OR_RUN") return "_ballast_files -f; return";
  return "return";
}

std::string JoinFlags(const std::vector<FlagSpec>& flags) {
  return absl::StrJoin(flags, " ",
                       [](std::string* text, const FlagSpec& flag) { absl::StrAppend(text, "--", flag.name); });
}

// Returns the branch of a command: its flags' values, its flags, its operand.
std::string Branch(const Command& command) {
  const std::vector<FlagSpec> flags = command.flags == nullptr ? std::vector<FlagSpec>() : command.flags();
  std::map<std::string, std::vector<std::string>> flags_by_completer;
  for (const FlagSpec& flag : flags) {
    if (!flag.value.empty()) flags_by_completer[Completer(flag.value)].push_back("--" + flag.name);
  }
  std::string text = absl::StrCat("    ", command.name, ")\n");
  if (!flags_by_completer.empty()) {
    absl::StrAppend(&text, "      case ${prev//_/-} in\n");
    for (const auto& [completer, names] : flags_by_completer) {
      absl::StrAppend(&text, "        ", absl::StrJoin(names, " | "), ") ", completer, " ;;\n");
    }
    absl::StrAppend(&text, "      esac\n");
  }
  absl::StrAppend(&text, "      if [[ $cur == -* ]]; then _ballast_words '", JoinFlags(flags), " --help'",
                  command.flags == nullptr ? absl::StrCat("\" $(_ballast_flags ", command.name, ")\"") : "",
                  "; return; fi\n");
  return absl::StrCat(text, "      ", Completer(command.operand), "\n      ;;\n");
}

}  // namespace

std::string BashCompletion(absl::Span<const Command> commands) {
  std::vector<std::string> names = {"help"};
  for (const Command& command : commands) names.emplace_back(command.name);
  const std::string all = absl::StrJoin(names, " ");
  std::string script = absl::StrCat(kHead, "  if ((COMP_CWORD == 1)); then _ballast_words '", all,
                                    " --help --version'; return; fi\n  case ${COMP_WORDS[1]} in\n    help) "
                                    "_ballast_words '",
                                    all, "'; return ;;\n");
  for (const Command& command : commands) absl::StrAppend(&script, Branch(command));
  return absl::StrCat(script, "  esac\n", kTail);
}

}  // namespace ballast
