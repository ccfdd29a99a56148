// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

struct FlagSpec {
  // The name without leading dashes, such as "run-dir", as errors and --help spell it.
  std::string name;
  // The placeholder for the value in --help, such as "DIR". Empty: a switch without a value.
  std::string value;
  std::string help;
  // A switch that may also be written --name=true, --name=false or --noname; its value is then that text.
  bool boolean = false;
  // May be given several times; see GetAll.
  bool repeated = false;
};

// The error of an unknown flag has a payload with this key: the flag's name.
inline constexpr char kUnknownFlag[] = "ballast/unknown_flag";

// A command's arguments, split into flags and positional words. Does not know what the flags mean. A flag is written
// --name value or --name=value; '-' and '_' in a name are equivalent; "--" ends the flags. Thread safety: immutable.
class Arguments {
 public:
  // INVALID_ARGUMENT if a flag is unknown (the error suggests the nearest name) or has no value, or if it is given
  // twice, may not be, and `last_counts` is false. --help and -h are always accepted.
  static absl::StatusOr<Arguments> Parse(absl::Span<const FlagSpec> flags, absl::Span<const std::string> words,
                                         bool last_counts = false);

  bool help() const { return help_; }
  const std::vector<std::string>& positional() const { return positional_; }
  bool Has(absl::string_view flag) const;
  // Returns `otherwise` if the flag is absent; the last value of a repeated one.
  std::string Get(absl::string_view flag, absl::string_view otherwise) const;
  // Returns the values of a repeated flag, in their order.
  std::vector<std::string> GetAll(absl::string_view flag) const;
  // INVALID_ARGUMENT if the value is not a number from `min` to `max`.
  absl::StatusOr<int> GetInt(absl::string_view flag, int otherwise, int min, int max) const;
  // INVALID_ARGUMENT if the value is not a number, possibly with a fraction, from `min` to `max`.
  absl::StatusOr<double> GetNumber(absl::string_view flag, double otherwise, double min, double max) const;
  // INVALID_ARGUMENT if a given value is not one of `choices`. `otherwise` is not checked.
  absl::StatusOr<std::string> GetChoice(absl::string_view flag, absl::string_view otherwise,
                                        absl::Span<const std::string> choices) const;

 private:
  bool help_ = false;
  std::map<std::string, std::vector<std::string>> values_;
  std::vector<std::string> positional_;
};

// Returns the flags section of a --help text, with one line per flag.
std::string DescribeFlags(absl::Span<const FlagSpec> flags);

// Returns `; did you mean "x"?` if a name is similar to `got`, otherwise an empty string.
std::string SuggestNearest(absl::string_view got, absl::Span<const std::string> names);

}  // namespace ballast
