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

// Takes the words after a command's name; returns the exit status. Writes results to `out`, all else to `err`.
using RunCommand = int(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
// Each is defined in the file of its name; `plot` with the report, and those that another program runs with the finder
// of programs.
RunCommand BenchCommand, DoctorCommand, EvalCommand, HostAgentCommand, JobCommand, KeysCommand, PlotCommand,
    PredictCommand, StatusCommand;

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

// Flags of a command that connects to a server: --tls-ca, --tls-cert, --tls-key, --token-file and --insecure.
const std::vector<FlagSpec>& SecurityFlags();

// Reads the security flags. The environment variable of a flag (BALLAST_TLS_CA …) applies if the flag is absent, as in
// Ballast's other programs. INVALID_ARGUMENT if a flag has an empty value.
absl::StatusOr<SecurityOptions> ReadSecurity(const Arguments& arguments);

// Returns the path of the program `ballast_<role>` ("server", "worker"). If the environment variable
// BALLAST_<ROLE>_BINARY is set, only its path is tried. Otherwise the search order is: the directory D of `own_path`,
// D/../<role> (Bazel's layout), PATH. A NOT_FOUND error lists the places that were searched.
absl::StatusOr<std::string> FindBinary(const std::string& role, const std::string& own_path);

// Returns what `ballast --version` prints, such as "ballast 0.1.0 (wire protocol 1)".
std::string VersionText();

// Returns the path of the running program, with symbolic links resolved.
std::string OwnPath();

}  // namespace ballast
