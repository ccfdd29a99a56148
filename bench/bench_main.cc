// SPDX-License-Identifier: Apache-2.0
// `ballast_bench`: the program behind `ballast bench`, with one command per benchmark.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/bench_report.h"
#include "bench/lock_step.h"
#include "bench/peers/stub_peer.h"
#include "bench/peers/tcp_stream.h"
#include "cli/command/command.h"
#include "common/program/arguments.h"
#include "common/program/this_process.h"

namespace ballast {
namespace {

constexpr Command kBenchmarks[] = {
    {"transfer", "Push and pull, compared with a bare TCP stream and a plain gRPC stub.", TransferCommand},
    {"apply", "The optimizers, compared with a loop over the same memory.", ApplyCommand},
    {"rows", "Rows of sparse tables, compared with random memory accesses, other maps and Redis.", RowsCommand},
    {"serve", "The time from a push to a served prediction.", ServeBenchCommand},
    {"step", "Real training, compared with PyTorch.", StepCommand},
    {"scaling", "Speed with more workers, in each consistency mode.", ScalingCommand},
    {"straggler", "Speed with one slow worker, in each consistency mode.", StragglerCommand},
};

// A process that a benchmark starts from this same program: `--tcp-sink --address_file FILE`, `--lock-step-small
// --seconds S`.
struct Role {
  const char* flag;
  absl::Status (*run)(const std::string& argument);
};
constexpr Role kRoles[] = {
    {"--tcp-sink", ServeTcpSink},
    {"--sgd-sink", ServeSgdSink},
    {"--asking-sink", ServeAskingSink},
    {"--tls-sink", ServeTlsSink},
    {"--tls-sgd-sink", ServeTlsSgdSink},
    {"--tls-asking-sink", ServeTlsAskingSink},
    {"--stub-server", ServeStub},
    {"--lock-step-small", [](const std::string& seconds) { return RunLockStep("small", seconds); }},
    {"--lock-step-large", [](const std::string& seconds) { return RunLockStep("large", seconds); }}};

void PrintHelp(std::ostream& out) {
  out << "usage: ballast bench BENCHMARK [flags]\n\n"
         "Measures Ballast on this machine, next to a limit or a peer measured in the same run.\n\n";
  for (const Command& benchmark : kBenchmarks) {
    out << absl::StrFormat("  %-10s %s\n", benchmark.name, benchmark.summary);
  }
  out << "\nEach benchmark accepts --json, which prints one JSON object as the last line, and --help.\n";
}

int Refuse(const std::vector<std::string>& words, const std::string& message) {
  const CommandResult result = Fail(std::cerr, absl::InvalidArgumentError(message), kExitBadInput);
  if (AsksForJson(words)) std::cout << FailureJson(result, "") << std::endl;
  return result;
}

int Main(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    PrintHelp(words.empty() ? std::cerr : std::cout);
    if (!words.empty()) return kExitSuccess;
    return Refuse(words, "no benchmark given");
  }
  for (const Role& role : kRoles) {
    if (words[0] != role.flag || words.size() != 3) continue;
    const absl::Status status = role.run(words[2]);
    return status.ok() ? kExitSuccess : static_cast<int>(Fail(std::cerr, status, kExitFailure));
  }
  KeepFreedMemory();
  SkipLockOrderChecks();
  std::vector<std::string> names;
  for (const Command& benchmark : kBenchmarks) {
    if (words[0] == benchmark.name) {
      const auto args = absl::MakeConstSpan(words).subspan(1);
      const CommandResult result = benchmark.run(args, std::cout, std::cerr);
      if (result.exit_status != kExitSuccess && AsksForJson(args)) std::cout << FailureJson(result, "") << std::endl;
      return result;
    }
    names.emplace_back(benchmark.name);
  }
  const std::string suggestion = SuggestNearest(words[0], names);
  return Refuse(words, absl::StrCat("unknown benchmark \"", words[0], "\"",
                                    suggestion.empty() ? "; see ballast bench --help" : suggestion));
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  // Hides gRPC's own log lines, which would drown ours; GRPC_VERBOSITY restores them.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return ballast::Main(std::vector<std::string>(argv + 1, argv + argc));
}
