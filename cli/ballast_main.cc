// SPDX-License-Identifier: Apache-2.0
// `ballast`: one program with a command for each task.
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/checkpoint/checkpoint_command.h"
#include "cli/command/command.h"
#include "cli/launch/launch_command.h"
#include "cli/report/report.h"

namespace ballast {
namespace {

constexpr Command kCommands[] = {
    {"launch", "Train a job, on this machine or on several hosts.", LaunchCommand},
    {"job", "Print the job that a job file and flags make.", JobCommand},
    {"predict", "Predict from new data with a trained model.", PredictCommand},
    {"eval", "Evaluate a trained model on data with labels.", EvalCommand},
    {"checkpoint", "List, check and export a job's checkpoints and logs.", CheckpointCommand},
    {"status", "Show the status of a running server.", StatusCommand},
    {"keys", "Create the certificates and tokens for a job on several machines.", KeysCommand},
    {"doctor", "Check what this machine has and what it lacks.", DoctorCommand},
    {"bench", "Run benchmarks on this machine.", BenchCommand},
    {"host-agent", "Start processes for launch --hosts; not for use by hand.", HostAgentCommand},
    {"plot", "Rewrite the report of a run directory.", PlotCommand},
};

void PrintHelp(std::ostream& out) {
  out << "usage: ballast COMMAND [flags]\n\n"
         "Trains neural networks with parameter servers.\n\n";
  for (const Command& command : kCommands) out << absl::StrFormat("  %-10s %s\n", command.name, command.summary);
  out << "  help       Show this help, or the help of one command: ballast help COMMAND.\n\n"
         "ballast --version prints the version. Exit status: 0 success, 1 failure while running, 2 bad usage or bad\n"
         "input, 75 other processes did not join in time, 130 interrupted.\n";
}

int RunNamed(const std::string& name, absl::Span<const std::string> args) {
  std::vector<std::string> names = {"help"};
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(args, std::cout, std::cerr);
    names.push_back(command.name);
  }
  const std::string suggestion = SuggestNearest(name, names);
  return Fail(std::cerr,
              absl::InvalidArgumentError(absl::StrCat("unknown command \"", name, "\"",
                                                      suggestion.empty() ? "; see ballast help" : suggestion)),
              kExitBadInput);
}

int Main(const std::vector<std::string>& words) {
  if (words.empty()) {
    PrintHelp(std::cerr);
    return Fail(std::cerr, absl::InvalidArgumentError("no command given"), kExitBadInput);
  }
  const std::string& name = words[0];
  if (name == "--version" || name == "version") {
    std::cout << VersionText() << std::endl;
    return kExitSuccess;
  }
  if (name == "--help" || name == "-h" || (name == "help" && words.size() == 1)) {
    PrintHelp(std::cout);
    return kExitSuccess;
  }
  if (name == "help") return RunNamed(words[1], {"--help"});
  return RunNamed(name, absl::MakeConstSpan(words).subspan(1));
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) { return ballast::Main(std::vector<std::string>(argv + 1, argv + argc)); }
