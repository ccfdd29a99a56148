// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/program/arguments.h"
#include "common/security/security_options.h"

namespace ballast {

// Exit statuses of every Ballast program.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitBadInput = 2;
// EX_TEMPFAIL in sysexits.h: other processes did not join in time; a retry may succeed.
inline constexpr int kExitTemporary = 75;
inline constexpr int kExitInterrupted = 130;

// The end of a command, whose error has been printed already. Converts from and to its exit status.
struct CommandResult {
  CommandResult(int code) : exit_status(code) {}  // NOLINT: implicit
  CommandResult(int code, absl::Status why) : exit_status(code), error(std::move(why)) {}
  operator int() const { return exit_status; }  // NOLINT: implicit

  int exit_status;
  // OK on success.
  absl::Status error;
};

// Takes the words after a command's name. Writes results to `out`, all else to `err`.
using RunCommand = CommandResult(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
// Each is defined in the file of its name; `plot` with the report, and those that another program runs with the finder
// of programs.
RunCommand BenchCommand, DoctorCommand, EvalCommand, HostAgentCommand, JobCommand, KeysCommand, LaunchCommand,
    PlotCommand, PredictCommand, RunProgramCommand, RunsCommand, ServeCommand, StatusCommand, SweepCommand;

// Returns the flags of a command.
using FlagTable = const std::vector<FlagSpec>&();
FlagTable DoctorFlags, JobFlags, KeysFlags, LaunchFlags, PlotFlags, RunFlags, RunsFlags, StatusFlags, SweepFlags;

// A command of `ballast`. A new command needs its own file, its name above and a row in the table in ballast_main.cc.
struct Command {
  const char* name;
  const char* summary;
  RunCommand* run;
  // The heading under which the help lists the command.
  const char* group = "";
  // The words after the command's name that are no flags, for the completion: JOB (a job file), DIR, FILE, or choices
  // such as "list|verify".
  const char* operand = "";
  // Null: another program parses the flags.
  FlagTable* flags = nullptr;
  // Runs on after its first output, which must not wait for its end.
  bool streams = false;
};

// Runs a command. With --json, a failure also is exactly one JSON object on `out`: what the command printed, if
// anything, with the error's text as `error`, a word for programs as `reason`, and `exit_code`. Of a command that
// streams, that object follows those that it printed before.
CommandResult RunWithJson(const Command& command, absl::Span<const std::string> args, std::ostream& out,
                          std::ostream& err);

// Returns whether the words ask for JSON, before they have been parsed.
bool AsksForJson(absl::Span<const std::string> args);

// Returns one line: the JSON object `printed`, or an empty one, with error, reason and exit_code. The reason is that of
// the server's error (docs/protocol), otherwise the name of the status code, such as NOT_FOUND.
std::string FailureJson(const CommandResult& result, absl::string_view printed);

// Prints the error in the format of every Ballast program, each line prefixed "error: ".
inline CommandResult Fail(std::ostream& err, const absl::Status& status, int exit_status) {
  err << "error: " << absl::StrReplaceAll(status.message(), {{"\n", "\nerror: "}}) << std::endl;
  return {exit_status, status};
}

// Flags of a command that connects to a server: --tls-ca, --tls-cert, --tls-key, --token-file and --insecure.
const std::vector<FlagSpec>& SecurityFlags();

// Reads the security flags. The environment variable of a flag (BALLAST_TLS_CA …) applies if the flag is absent, as in
// Ballast's other programs. INVALID_ARGUMENT if a flag has an empty value.
absl::StatusOr<SecurityOptions> ReadSecurity(const Arguments& arguments);

// Returns the path of the program `ballast_<role>` ("server", "worker"). If the environment variable
// BALLAST_<ROLE>_BINARY is set, only its path is tried. Otherwise the search order is: the directory D of `own_path`,
// D/../<role> (Bazel's layout), PATH. A NOT_FOUND error lists the places that were searched.
absl::StatusOr<std::string> FindBinary(const std::string& role, const std::string& own_path);

// Replaces this process with the program `ballast_<role>`, with `words` and then `args`. Returns only if that cannot be
// found or run.
CommandResult Become(const std::string& role, std::vector<std::string> words, absl::Span<const std::string> args,
                     std::ostream& out, std::ostream& err);

// Returns what `ballast --version` prints, such as "ballast 0.1.0 (wire protocol 1)".
std::string VersionText();

// Returns the path of the running program, with symbolic links resolved.
std::string OwnPath();

}  // namespace ballast
