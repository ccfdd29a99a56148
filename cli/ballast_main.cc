// SPDX-License-Identifier: Apache-2.0
// `ballast`: one program with a command for each task.
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/checkpoint/checkpoint_command.h"
#include "cli/command/command.h"
#include "cli/command/completion.h"
#include "cli/data/data_command.h"
#include "cli/page/page_command.h"
#include "cli/report/report.h"
#include "cli/table/table_command.h"
#include "common/program/arguments.h"
#include "common/program/this_process.h"

namespace ballast {
namespace {

RunCommand CompletionCommand;

const std::vector<FlagSpec>& NoFlags() {
  static const auto* flags = new std::vector<FlagSpec>();
  return *flags;
}

// In the order of the help; commands of a group stand together.
constexpr Command kCommands[] = {
    {"launch", "Train a job, on this machine or on several hosts.", LaunchCommand, "train", "JOB", LaunchFlags},
    {"run", "Run a program of your own as the workers of a job.", RunProgramCommand, "train", "-- PROGRAM", RunFlags},
    {"sweep", "Train a job with several values of its fields, and compare the results.", SweepCommand, "train", "JOB",
     SweepFlags},
    {"job", "Print the job that a job file and flags make.", JobCommand, "train", "JOB", JobFlags},
    {"data", "Write data to train on.", DataCommand, "train", "ctr", DataFlags},
    {"predict", "Predict from new data with a trained model.", PredictCommand, "use a model", "MODEL_OR_RUN"},
    {"eval", "Evaluate a trained model on data with labels.", EvalCommand, "use a model", "MODEL_OR_RUN"},
    {"serve", "Answer predictions over HTTP and gRPC, from a model that may follow its training.", ServeCommand,
     "use a model", "MODEL_OR_RUN"},
    {"status", "Show the progress of a run or of a server.", StatusCommand, "watch and compare", "RUN_DIR",
     StatusFlags},
    {"page", "Show a run live in the browser: twenty panels, from the loss to the memory of each shard.", PageCommand,
     "watch and compare", "RUN_DIR", PageFlags, /*streams=*/true},
    {"top", "Show the figures of the page in the terminal.", TopCommand, "watch and compare", "RUN_DIR", TopFlags,
     /*streams=*/true},
    {"runs", "List the runs with their results.", RunsCommand, "watch and compare", "DIR", RunsFlags},
    {"plot", "Write the report of a run, or one that compares runs.", PlotCommand, "watch and compare", "RUN_DIR",
     PlotFlags},
    {"checkpoint", "List, check, export and take a job's checkpoints.", CheckpointCommand, "watch and compare",
     "list|verify|export|save", CheckpointFlags},
    {"table", "Look into a sparse table of a running job, or export it.", TableCommand, "watch and compare",
     "stats|top|dry-run|export", TableFlags},
    {"doctor", "Check what this machine has and what it lacks.", DoctorCommand, "machines", "", DoctorFlags},
    {"bench", "Run benchmarks on this machine.", BenchCommand, "machines"},
    {"keys", "Create the certificates and tokens for a job on several machines.", KeysCommand, "machines", "DIR",
     KeysFlags},
    {"host-agent", "Start processes for launch --hosts; not for use by hand.", HostAgentCommand, "machines"},
    {"completion", "Print a script with which a shell completes this program's commands and flags.", CompletionCommand,
     "shell", "bash", NoFlags},
};

// `ballast completion bash`.
CommandResult CompletionCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(NoFlags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << "usage: ballast completion bash\n\n"
           "Prints a script that completes commands, flags and files in bash. In ~/.bashrc:\n"
           "  source <(ballast completion bash)\n";
    return kExitSuccess;
  }
  if (arguments->positional() != std::vector<std::string>{"bash"}) {
    return Fail(err, absl::InvalidArgumentError("completion: want the name of a shell: bash"), kExitBadInput);
  }
  out << BashCompletion(kCommands) << std::flush;
  return kExitSuccess;
}

void PrintHelp(std::ostream& out) {
  out << "usage: ballast COMMAND [flags]\n\n"
         "Trains neural networks with parameter servers.\n";
  absl::string_view group;
  for (const Command& command : kCommands) {
    if (command.group != group) out << "\n" << command.group << "\n";
    group = command.group;
    out << absl::StrFormat("  %-10s %s\n", command.name, command.summary);
  }
  out << "  help       Show this help, or the help of one command: ballast help COMMAND.\n\n"
         "ballast --version prints the version. Flags may be written with - or _ between words. Exit status: 0 "
         "success,\n"
         "1 failure while running, 2 bad usage or bad input, 75 other processes did not join in time, 130 "
         "interrupted.\n";
}

int RunNamed(const std::string& name, absl::Span<const std::string> args) {
  std::vector<std::string> names = {"help"};
  for (const Command& command : kCommands) {
    if (name == command.name) return RunWithJson(command, args, std::cout, std::cerr);
    names.emplace_back(command.name);
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
  if (name == "--help" || name == "-h" || (name == "help" && (words.size() == 1 || words[1] == "--help"))) {
    PrintHelp(std::cout);
    return kExitSuccess;
  }
  if (name == "help") return RunNamed(words[1], {"--help"});
  return RunNamed(name, absl::MakeConstSpan(words).subspan(1));
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  const int status = ballast::Main(std::vector<std::string>(argv + 1, argv + argc));
  if (std::cout.flush() || status != ballast::kExitSuccess) return status;
  return ballast::Fail(std::cerr, absl::DataLossError("cannot write all of the output to standard output"),
                       ballast::kExitFailure);
}
