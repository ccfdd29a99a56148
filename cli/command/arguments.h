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

// A flag that a command takes.
struct FlagSpec {
  // Without the dashes before it: "run-dir".
  std::string name;
  // What --help calls its value: "DIR". Empty: a switch, which takes none.
  std::string value;
  std::string help;
};

// The words behind a command's name, sorted into flags and the rest. Knows the flags' names, not what they mean.
// A flag is written --name value or --name=value; '-' and '_' within a name are the same; "--" ends the flags.
// Thread safety: immutable.
class Arguments {
 public:
  // INVALID_ARGUMENT names a flag that is unknown (and the nearest known one), given twice, or lacks its value.
  // --help and -h are known without being listed.
  static absl::StatusOr<Arguments> Parse(absl::Span<const FlagSpec> flags, absl::Span<const std::string> words);

  bool help() const { return help_; }
  const std::vector<std::string>& positional() const { return positional_; }
  bool Has(absl::string_view flag) const;
  // `otherwise` where the flag was not given.
  std::string Get(absl::string_view flag, absl::string_view otherwise) const;
  // INVALID_ARGUMENT for what is no number from `least` to `most`.
  absl::StatusOr<int> GetInt(absl::string_view flag, int otherwise, int least, int most) const;
  // INVALID_ARGUMENT for what is given and not among `choices`.
  absl::StatusOr<std::string> GetChoice(absl::string_view flag, absl::string_view otherwise,
                                        absl::Span<const std::string> choices) const;

 private:
  bool help_ = false;
  std::map<std::string, std::string> values_;
  std::vector<std::string> positional_;
};

// The flags' part of a --help text, a line each.
std::string DescribeFlags(absl::Span<const FlagSpec> flags);

// "; did you mean "x"?" where one of the names is like `got`, else empty.
std::string SuggestNearest(absl::string_view got, absl::Span<const std::string> names);

}  // namespace ballast
