// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/program_words.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/launch/placement.h"

namespace ballast {
namespace {

std::string Variable(absl::string_view name, absl::string_view value) { return absl::StrCat(name, "=", value); }

// Adds the flags of ballast_worker as variables: BALLAST_TLS_CA=... for --tls_ca ...; a flag without a value is true.
void AddFlagVariables(const std::vector<std::string>& flags, std::vector<std::string>& words) {
  for (size_t i = 0; i < flags.size(); ++i) {
    const std::string name = absl::StrCat("BALLAST_", absl::AsciiStrToUpper(flags[i].substr(2)));
    const bool has_value = i + 1 < flags.size() && flags[i + 1].rfind("--", 0) != 0;
    words.push_back(Variable(name, has_value ? flags[++i] : "true"));
  }
}

}  // namespace

std::vector<std::string> ProgramWords(const LaunchPlan& plan, int rank, int cores, const std::string& coordinator) {
  const int host = HostOfWorker(plan, rank);
  int local_rank = 0;
  for (int other = 0; other < rank; ++other) local_rank += HostOfWorker(plan, other) == host;
  const int there = plan.hosts.empty() ? plan.workers : plan.hosts[host].workers;
  const int threads = plan.threads > 0 ? plan.threads : std::max(1, cores / there);
  const std::string master = plan.hosts.empty() ? "127.0.0.1" : plan.hosts[HostOfWorker(plan, 0)].address;
  std::vector<std::string> words = {
      absl::StrCat("--chdir=", plan.program_directory), Variable("RANK", absl::StrCat(rank)),
      Variable("WORLD_SIZE", absl::StrCat(plan.workers)), Variable("LOCAL_RANK", absl::StrCat(local_rank)),
      Variable("LOCAL_WORLD_SIZE", absl::StrCat(there)), Variable("MASTER_ADDR", master),
      Variable("OMP_NUM_THREADS", absl::StrCat(threads)),
      // Otherwise the log shows a line long after it was printed.
      Variable("PYTHONUNBUFFERED", "1"), Variable("BALLAST_COORDINATOR", coordinator),
      Variable("BALLAST_RANK", absl::StrCat(rank)),
      Variable("BALLAST_GATHER_TIMEOUT", absl::StrCat(plan.gather_seconds)), Variable("BALLAST_RUN_DIR", plan.run_dir),
      Variable("BALLAST_FLIGHT_DIR", absl::StrCat(plan.run_dir, "/logs"))};
  AddFlagVariables(plan.worker_security, words);
  words.insert(words.end(), plan.program_variables.begin(), plan.program_variables.end());
  words.insert(words.end(), plan.program.begin(), plan.program.end());
  return words;
}

}  // namespace ballast
