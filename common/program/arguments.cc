// SPDX-License-Identifier: Apache-2.0
#include "common/program/arguments.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/text/nearest_name.h"

namespace ballast {
namespace {

std::string Dashed(absl::string_view name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

const FlagSpec* FindFlag(absl::Span<const FlagSpec> flags, absl::string_view name) {
  auto found =
      std::find_if(flags.begin(), flags.end(), [&](const FlagSpec& flag) { return Dashed(flag.name) == Dashed(name); });
  return found == flags.end() ? nullptr : &*found;
}

absl::Status UnknownFlag(absl::Span<const FlagSpec> flags, absl::string_view name) {
  std::vector<std::string> names = {"help"};
  for (const FlagSpec& flag : flags) names.push_back(flag.name);
  std::string suggestion = SuggestNearest(name, names);
  if (!suggestion.empty()) suggestion = absl::StrReplaceAll(suggestion, {{"mean \"", "mean \"--"}});
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", name, suggestion.empty() ? "; see --help" : suggestion));
  status.SetPayload(kUnknownFlag, absl::Cord(name));
  return status;
}

}  // namespace

absl::StatusOr<Arguments> Arguments::Parse(absl::Span<const FlagSpec> flags, absl::Span<const std::string> words,
                                           bool last_counts) {
  Arguments arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    const absl::string_view word = words[i];
    if (word == "--") {
      arguments.positional_.insert(arguments.positional_.end(), words.begin() + i + 1, words.end());
      break;
    }
    if (word == "-h") {
      arguments.help_ = true;
      continue;
    }
    if (!absl::StartsWith(word, "-") || word == "-") {
      arguments.positional_.emplace_back(word);
      continue;
    }
    absl::string_view text = word.substr(absl::StartsWith(word, "--") ? 2 : 1);
    const size_t equals = text.find('=');
    const bool has_value = equals != absl::string_view::npos;
    const absl::string_view name = text.substr(0, equals);
    if (name == "help" && !has_value) {
      arguments.help_ = true;
      continue;
    }
    std::string value = "true";
    const FlagSpec* flag = FindFlag(flags, name);
    if (flag == nullptr && absl::StartsWith(name, "no") && !has_value) {
      flag = FindFlag(flags, name.substr(2));
      if (flag != nullptr && !flag->boolean) flag = nullptr;
      value = "false";
    }
    if (flag == nullptr) return UnknownFlag(flags, name);
    if (has_value) {
      if (flag->value.empty() && !flag->boolean) {
        return absl::InvalidArgumentError(absl::StrCat("flag --", flag->name, " takes no value"));
      }
      value = std::string(text.substr(equals + 1));
    } else if (!flag->value.empty()) {
      if (i + 1 == words.size()) {
        return absl::InvalidArgumentError(absl::StrCat("flag --", flag->name, " wants a value: ", flag->value));
      }
      value = words[++i];
    }
    std::vector<std::string>& values = arguments.values_[flag->name];
    if (!values.empty() && !flag->repeated && !last_counts) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag->name, " is given twice"));
    }
    values.push_back(value);
  }
  return arguments;
}

bool Arguments::Has(absl::string_view flag) const { return values_.count(std::string(flag)) > 0; }

std::string Arguments::Get(absl::string_view flag, absl::string_view otherwise) const {
  auto found = values_.find(std::string(flag));
  return found == values_.end() ? std::string(otherwise) : found->second.back();
}

std::vector<std::string> Arguments::GetAll(absl::string_view flag) const {
  auto found = values_.find(std::string(flag));
  return found == values_.end() ? std::vector<std::string>() : found->second;
}

absl::StatusOr<int> Arguments::GetInt(absl::string_view flag, int otherwise, int min, int max) const {
  if (!Has(flag)) return otherwise;
  const std::string text = Get(flag, "");
  int number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < min || number > max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("flag --%s: got \"%s\", want a number from %d to %d", flag, text, min, max));
  }
  return number;
}

absl::StatusOr<double> Arguments::GetNumber(absl::string_view flag, double otherwise, double min, double max) const {
  if (!Has(flag)) return otherwise;
  const std::string text = Get(flag, "");
  double number = 0;
  if (!absl::SimpleAtod(text, &number) || !(number >= min && number <= max)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("flag --%s: got \"%s\", want a number from %g to %g", flag, text, min, max));
  }
  return number;
}

absl::StatusOr<std::string> Arguments::GetChoice(absl::string_view flag, absl::string_view otherwise,
                                                 absl::Span<const std::string> choices) const {
  const std::string got = Get(flag, otherwise);
  if (!Has(flag) || std::find(choices.begin(), choices.end(), got) != choices.end()) return got;
  return absl::InvalidArgumentError(
      absl::StrFormat("flag --%s: got \"%s\", want %s", flag, got, absl::StrJoin(choices, " or ")));
}

std::string DescribeFlags(absl::Span<const FlagSpec> flags) {
  std::string text;
  for (const FlagSpec& flag : flags) {
    const std::string left = absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value);
    absl::StrAppendFormat(&text, "  %-22s  %s\n", left, flag.help);
  }
  absl::StrAppendFormat(&text, "  %-22s  %s\n", "--help", "Show this help.");
  return text;
}

std::string SuggestNearest(absl::string_view got, absl::Span<const std::string> names) {
  const NearestName nearest = FindNearestName(got, names);
  if (nearest.name == nullptr || nearest.distance > std::max<size_t>(1, nearest.name->size() / 2)) return "";
  return absl::StrCat("; did you mean \"", *nearest.name, "\"?");
}

}  // namespace ballast
