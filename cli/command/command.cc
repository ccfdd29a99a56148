// SPDX-License-Identifier: Apache-2.0
#include "cli/command/command.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/text/nearest_name.h"

namespace ballast {
namespace {

const FlagSpec* FindFlag(absl::Span<const FlagSpec> flags, absl::string_view name) {
  auto found = std::find_if(flags.begin(), flags.end(), [&](const FlagSpec& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

absl::Status UnknownFlag(absl::Span<const FlagSpec> flags, absl::string_view name) {
  std::vector<std::string> names = {"help"};
  for (const FlagSpec& flag : flags) names.push_back(flag.name);
  std::string suggestion = SuggestNearest(name, names);
  if (!suggestion.empty()) suggestion = absl::StrReplaceAll(suggestion, {{"mean \"", "mean \"--"}});
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", name, suggestion.empty() ? "; see --help" : suggestion));
}

}  // namespace

absl::StatusOr<Arguments> Arguments::Parse(absl::Span<const FlagSpec> flags, absl::Span<const std::string> words) {
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
    const std::string name = absl::StrReplaceAll(text.substr(0, equals), {{"_", "-"}});
    if (name == "help" && equals == absl::string_view::npos) {
      arguments.help_ = true;
      continue;
    }
    const FlagSpec* flag = FindFlag(flags, name);
    if (flag == nullptr) return UnknownFlag(flags, name);
    std::string value;
    if (flag->value.empty()) {
      if (equals != absl::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("flag --", name, " takes no value"));
      }
    } else if (equals != absl::string_view::npos) {
      value = std::string(text.substr(equals + 1));
    } else if (i + 1 < words.size()) {
      value = words[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("flag --", name, " wants a value: ", flag->value));
    }
    if (!arguments.values_.emplace(name, value).second) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", name, " is given twice"));
    }
  }
  return arguments;
}

bool Arguments::Has(absl::string_view flag) const { return values_.count(std::string(flag)) > 0; }

std::string Arguments::Get(absl::string_view flag, absl::string_view otherwise) const {
  auto found = values_.find(std::string(flag));
  return found == values_.end() ? std::string(otherwise) : found->second;
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

namespace {

// Null if the variable is not set.
const char* FromEnvironment(const std::string& flag) {
  return std::getenv(absl::StrCat("BALLAST_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}}))).c_str());
}

}  // namespace

const std::vector<FlagSpec>& SecurityFlags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"tls-ca", "FILE", "CA certificates (PEM) that verify servers; enables TLS."},
      {"tls-cert", "FILE", "Client certificate (PEM), for servers that require one."},
      {"tls-key", "FILE", "Private key (PEM) of the certificate, in a file that only this user can read."},
      {"token-file", "FILE", "File with the token to send, in the form: reader JOB|* TOKEN."},
      {"insecure", "", "Connect to servers on other machines without TLS."},
  };
  return *flags;
}

absl::StatusOr<SecurityOptions> ReadSecurity(const Arguments& arguments) {
  SecurityOptions options;
  const std::pair<const char*, std::string*> paths[] = {{"tls-ca", &options.tls.authorities},
                                                        {"tls-cert", &options.tls.certificate},
                                                        {"tls-key", &options.tls.key},
                                                        {"token-file", &options.token_file}};
  for (const auto& [flag, path] : paths) {
    const char* const otherwise = FromEnvironment(flag);
    *path = arguments.Get(flag, otherwise == nullptr ? "" : otherwise);
    if (arguments.Has(flag) && path->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": got \"\", want a file name"));
    }
  }
  options.insecure = arguments.Has("insecure");
  const char* const insecure = FromEnvironment("insecure");
  if (insecure != nullptr && !options.insecure && !absl::SimpleAtob(insecure, &options.insecure)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable BALLAST_INSECURE: got \"", insecure, "\", want true or false"));
  }
  return options;
}

}  // namespace ballast
