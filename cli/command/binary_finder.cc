// SPDX-License-Identifier: Apache-2.0
#include "cli/command/binary_finder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/command/command.h"

namespace ballast {
namespace {

bool IsProgram(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

absl::StatusOr<std::string> FindBinary(const std::string& role, const std::string& own_path) {
  const std::string variable = absl::StrCat("BALLAST_", absl::AsciiStrToUpper(role), "_BINARY");
  if (const char* named = std::getenv(variable.c_str()); named != nullptr && *named != '\0') {
    if (IsProgram(named)) return std::string(named);
    return absl::NotFoundError(
        absl::StrCat("environment variable ", variable, ": ", named, " is not an executable file"));
  }
  const std::string name = absl::StrCat("ballast_", role);
  const std::filesystem::path folder = std::filesystem::path(own_path).parent_path();
  std::vector<std::string> places = {(folder / name).string(), (folder.parent_path() / role / name).string()};
  if (const char* path = std::getenv("PATH"); path != nullptr) {
    for (absl::string_view place : absl::StrSplit(path, ':', absl::SkipEmpty())) {
      places.push_back(absl::StrCat(place, "/", name));
    }
  }
  for (const std::string& place : places) {
    if (IsProgram(place)) return place;
  }
  return absl::NotFoundError(absl::StrCat("cannot find ", name, ": it is neither ", places[0], " nor ", places[1],
                                          " nor on PATH; build it with `bazel build //", role, ":", name, "` or set ",
                                          variable));
}

std::string OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

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
