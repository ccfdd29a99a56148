// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/command/binary_finder.h"
#include "cli/command/command.h"

namespace ballast {

// `ballast bench BENCHMARK [flags]`: replaces this process with ballast_bench, which contains the benchmarks and parses
// their flags. Returns only if that program cannot be found or run.
int BenchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<std::string> program = FindBinary("bench", OwnPath());
  if (!program.ok()) return Fail(err, program.status(), kExitFailure);
  std::vector<std::string> words = {*program};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  out.flush();
  err.flush();
  execv(program->c_str(), argv.data());
  return Fail(err, absl::ErrnoToStatus(errno, absl::StrCat("cannot run ", *program)), kExitFailure);
}

}  // namespace ballast
