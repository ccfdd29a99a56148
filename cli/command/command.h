// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"

namespace ballast {

// What every program of Ballast exits with.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitBadInput = 2;
// As EX_TEMPFAIL of sysexits.h: others were missing; the same again may succeed.
inline constexpr int kExitTemporary = 75;
inline constexpr int kExitInterrupted = 130;

// One word behind `ballast`. Adding a command touches its own two files and the table in ballast_main.cc.
struct Command {
  const char* name;
  const char* summary;
  // Gets the words behind the command's name; answers the exit status. Results go to `out`, all else to `err`.
  int (*run)(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);
};

// Says what went wrong as every program does, on the last line, or on several; answers the exit status.
inline int Fail(std::ostream& err, const absl::Status& status, int exit_status) {
  err << "error: " << absl::StrReplaceAll(status.message(), {{"\n", "\nerror: "}}) << std::endl;
  return exit_status;
}

}  // namespace ballast
