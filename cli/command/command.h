// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/security/security_options.h"

namespace ballast {

// Exit statuses of every Ballast program.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitBadInput = 2;
// EX_TEMPFAIL in sysexits.h: other processes did not join in time; a retry may succeed.
inline constexpr int kExitTemporary = 75;
inline constexpr int kExitInterrupted = 130;

// Takes the words after a command's name; returns the exit status. Writes results to `out`, all else to `err`.
using RunCommand = int(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
// Each is defined in the file of its name; `bench` with the finder of programs, `plot` with the report.
RunCommand BenchCommand, DoctorCommand, KeysCommand, PlotCommand, StatusCommand;

// A command of `ballast`. A new command needs its own file, its name above and a row in the table in ballast_main.cc.
struct Command {
  const char* name;
  const char* summary;
  RunCommand* run;
};

// Prints the error in the format of every Ballast program, each line prefixed "error: ". Returns `exit_status`.
inline int Fail(std::ostream& err, const absl::Status& status, int exit_status) {
  err << "error: " << absl::StrReplaceAll(status.message(), {{"\n", "\nerror: "}}) << std::endl;
  return exit_status;
}

struct FlagSpec {
  // The name without leading dashes, such as "run-dir".
  std::string name;
  // The placeholder for the value in --help, such as "DIR". Empty: a switch without a value.
  std::string value;
  std::string help;
};

// A command's arguments, split into flags and positional words. Does not know what the flags mean. A flag is written
// --name value or --name=value; '-' and '_' in a name are equivalent; "--" ends the flags. Thread safety: immutable.
class Arguments {
 public:
  // INVALID_ARGUMENT if a flag is unknown (the error suggests the nearest name), repeated, or has no value.
  // --help and -h are always accepted.
  static absl::StatusOr<Arguments> Parse(absl::Span<const FlagSpec> flags, absl::Span<const std::string> words);

  bool help() const { return help_; }
  const std::vector<std::string>& positional() const { return positional_; }
  bool Has(absl::string_view flag) const;
  // Returns `otherwise` if the flag is absent.
  std::string Get(absl::string_view flag, absl::string_view otherwise) const;
  // INVALID_ARGUMENT if the value is not a number from `min` to `max`.
  absl::StatusOr<int> GetInt(absl::string_view flag, int otherwise, int min, int max) const;
  // INVALID_ARGUMENT if a given value is not one of `choices`. `otherwise` is not checked.
  absl::StatusOr<std::string> GetChoice(absl::string_view flag, absl::string_view otherwise,
                                        absl::Span<const std::string> choices) const;

 private:
  bool help_ = false;
  std::map<std::string, std::string> values_;
  std::vector<std::string> positional_;
};

// Returns the flags section of a --help text, with one line per flag.
std::string DescribeFlags(absl::Span<const FlagSpec> flags);

// Returns `; did you mean "x"?` if a name is similar to `got`, otherwise an empty string.
std::string SuggestNearest(absl::string_view got, absl::Span<const std::string> names);

// Flags of a command that connects to a server: --tls-ca, --tls-cert, --tls-key, --token-file and --insecure.
const std::vector<FlagSpec>& SecurityFlags();

// Reads the security flags. The environment variable of a flag (BALLAST_TLS_CA …) applies if the flag is absent, as in
// Ballast's other programs. INVALID_ARGUMENT if a flag has an empty value.
absl::StatusOr<SecurityOptions> ReadSecurity(const Arguments& arguments);

}  // namespace ballast
