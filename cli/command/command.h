// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"

namespace ballast {

// Exit statuses of every Ballast program.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitBadInput = 2;
// EX_TEMPFAIL in sysexits.h: other processes did not join in time; a retry may succeed.
inline constexpr int kExitTemporary = 75;
inline constexpr int kExitInterrupted = 130;

// A command of `ballast`. A new command needs its own two files and a row in the table in ballast_main.cc.
struct Command {
  const char* name;
  const char* summary;
  // Takes the words after the command's name; returns the exit status. Writes results to `out`, all else to `err`.
  int (*run)(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
};

// Prints the error in the format of every Ballast program, each line prefixed "error: ". Returns `exit_status`.
inline int Fail(std::ostream& err, const absl::Status& status, int exit_status) {
  err << "error: " << absl::StrReplaceAll(status.message(), {{"\n", "\nerror: "}}) << std::endl;
  return exit_status;
}

}  // namespace ballast
