// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "cli/command/command.h"
#include "cli/launch/launch_request.h"
#include "cli/report/comparison.h"
#include "cli/report/run_catalog.h"
#include "cli/sweep/sweep.h"
#include "cli/sweep/value_grid.h"
#include "common/program/arguments.h"
#include "common/program/core_count.h"
#include "common/run/run_folder.h"
#include "common/storage/file.h"
#include "common/text/json_fields.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kUsage[] =
    "usage: ballast sweep JOB --set FIELD=VALUE,VALUE... [--set ...] [flags] [flags of ballast launch]\n\n"
    "Trains the job once for each combination of the values, each in a run directory of its own, and compares the\n"
    "results: a table with the best run first, and one report. A --set with one value holds for all runs. Commas in\n"
    "a value need quotes or brackets. Ctrl-C saves the models and stops all runs.\n\n";

constexpr int kMaxParallel = 64;
constexpr size_t kMaxNameBytes = 80;

const std::vector<FlagSpec>& OwnFlags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"set", "FIELD=VALUES", "Values of a field of the job file, separated by commas; may be given several times."},
      {"parallel", "N",
       "Number of runs at a time, 1 to 64 (default: 1); they share the cores unless --threads is given."},
      {"run-dir", "DIR", "Directory for all runs; must be new or empty (default: runs/JOB-sweep-TIME)."},
      {"json", "", "Print only one JSON object with all results to standard output."},
      {"verbose", "", "Show the output of all runs; logs/ in the directory has it in any case."},
  };
  return *flags;
}

// Flags of launch that would mean the same file or checkpoint for all runs.
constexpr absl::string_view kRefused[] = {"trace", "trace-steps", "resume"};

const FlagSpec* FindFlag(const std::vector<FlagSpec>& flags, absl::string_view name) {
  const std::string dashed = absl::StrReplaceAll(name, {{"_", "-"}});
  const auto found = std::ranges::find(flags, dashed, &FlagSpec::name);
  return found == flags.end() ? nullptr : &*found;
}

// The words of the command line by whom they are for.
struct Words {
  std::vector<std::string> own;
  std::vector<std::string> settings;
  // Arguments of each `ballast launch`.
  std::vector<std::string> launch;
};

absl::StatusOr<Words> SplitWords(absl::Span<const std::string> args) {
  Words words;
  for (size_t i = 0; i < args.size(); ++i) {
    const absl::string_view word = args[i];
    if (word == "--") {
      words.launch.insert(words.launch.end(), args.begin() + i, args.end());
      break;
    }
    const absl::string_view text = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    const size_t equals = text.find('=');
    const FlagSpec* own = absl::StartsWith(word, "-") ? FindFlag(OwnFlags(), text.substr(0, equals)) : nullptr;
    if (own == nullptr && word != "--help" && word != "-h") {
      words.launch.emplace_back(word);
    } else if (own == nullptr || own->name != "set") {
      words.own.emplace_back(word);
      if (own != nullptr && !own->value.empty() && equals == text.npos && i + 1 < args.size()) {
        words.own.push_back(args[++i]);
      }
    } else if (equals != text.npos) {
      words.settings.emplace_back(text.substr(equals + 1));
    } else if (i + 1 < args.size()) {
      words.settings.push_back(args[++i]);
    } else {
      return absl::InvalidArgumentError("flag --set wants a value: FIELD=VALUES");
    }
  }
  return words;
}

// The parsed command line.
struct Plan {
  int parallel = 1;
  std::vector<GridPoint> points;
  // Words for `ballast launch` that each run has, and those of each point.
  std::vector<std::string> common;
  std::vector<std::vector<std::string>> own;
  // Name of the job.
  std::string job;
};

absl::StatusOr<Plan> ReadPlan(const Arguments& own, const Arguments& launch, const Words& words) {
  Plan plan;
  const absl::StatusOr<int> parallel = own.GetInt("parallel", 1, 1, kMaxParallel);
  if (!parallel.ok()) return parallel.status();
  plan.parallel = *parallel;
  if (launch.positional() == std::vector<std::string>{"-"}) {
    return absl::InvalidArgumentError("sweep: got - (standard input), want a job file: each run reads it");
  }
  for (absl::string_view flag : kRefused) {
    if (launch.Has(flag)) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": ballast sweep does not take it, because all ",
                                                     "runs would use the same; want it with ballast launch"));
    }
  }
  absl::StatusOr<std::vector<GridPoint>> points = MakeGrid(words.settings);
  if (!points.ok()) return points.status();
  plan.points = *std::move(points);
  const absl::StatusOr<int> workers = launch.GetInt("workers", 1, 1, kMaxProcesses);
  if (!workers.ok()) return workers.status();
  // Each host shares out its own cores.
  if (!launch.Has("threads") && !launch.Has("hosts")) {
    const int runs = std::min(plan.parallel, static_cast<int>(plan.points.size()));
    plan.common = {"--threads", absl::StrCat(std::max(1, CoreCount() / (runs * *workers)))};
  }
  plan.common.insert(plan.common.end(), words.launch.begin(), words.launch.end());
  for (const GridPoint& point : plan.points) {
    std::vector<std::string>& flags = plan.own.emplace_back();
    for (const auto& [field, value] : point.settings) {
      flags.insert(flags.end(), {"--set", absl::StrCat(field, "=", value)});
    }
    std::vector<std::string> all = flags;
    all.insert(all.end(), plan.common.begin(), plan.common.end());
    const absl::StatusOr<v1::Job> job = CheckLaunch(all);
    if (!job.ok() && point.name.empty()) return job.status();
    if (!job.ok()) return absl::InvalidArgumentError(absl::StrCat("run ", point.name, ": ", job.status().message()));
    if (plan.job.empty()) plan.job = job->name();
  }
  return plan;
}

// Creates the directory of the sweep and those in it that the runs do not create.
absl::StatusOr<std::string> CreateDirectory(const std::string& wanted, const std::string& job) {
  absl::StatusOr<RunFolder> folder =
      wanted.empty() ? RunFolder::CreateUnder(kRuns, job + "-sweep", absl::Now()) : RunFolder::Create(wanted);
  if (!folder.ok()) return folder.status();
  std::error_code error;
  if (!std::filesystem::is_empty(folder->path(), error) || error) {
    return absl::AlreadyExistsError(
        absl::StrCat("directory ", folder->path(), ": is not empty, want a new or an empty one"));
  }
  std::filesystem::create_directory(folder->path() + "/logs", error);
  if (error) return absl::ErrnoToStatus(error.value(), folder->path() + "/logs");
  return folder->path();
}

// Returns a name such as "03-learning_rate=0.01".
std::string DirectoryName(size_t number, size_t count, const std::string& name) {
  std::string text = name.substr(0, kMaxNameBytes);
  for (char& c : text) {
    if (!absl::ascii_isalnum(c) && absl::string_view("._=+-").find(c) == absl::string_view::npos) c = '_';
  }
  return absl::StrFormat("%0*d%s%s", static_cast<int>(absl::StrCat(count).size()), number, text.empty() ? "" : "-",
                         text);
}

std::vector<SweepRun> MakeRuns(const Plan& plan, const std::string& directory) {
  std::vector<SweepRun> runs;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    SweepRun& run = runs.emplace_back();
    run.name = plan.points[i].name.empty() ? plan.job : plan.points[i].name;
    run.run_dir = absl::StrCat(directory, "/", DirectoryName(i + 1, plan.points.size(), plan.points[i].name));
    run.argv = {OwnPath(), "launch", "--run-dir", run.run_dir};
    run.argv.insert(run.argv.end(), plan.own[i].begin(), plan.own[i].end());
    run.argv.insert(run.argv.end(), plan.common.begin(), plan.common.end());
  }
  return runs;
}

// Returns the indexes of the runs, the best first; runs that were not started come last.
std::vector<size_t> Ranking(const std::vector<SweepRun>& runs) {
  std::vector<size_t> order(runs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!runs[a].result.has_value() || !runs[b].result.has_value()) return runs[a].result.has_value();
    return IsBetter(*runs[a].result, *runs[b].result);
  });
  return order;
}

Json SweepJson(const Plan& plan, const std::string& directory, const std::vector<SweepRun>& runs,
               const std::string& report) {
  Json rows = Json::array();
  for (const size_t index : Ranking(runs)) {
    Json settings = Json::object();
    for (const auto& [field, value] : plan.points[index].settings) settings[field] = value;
    const std::optional<RunInfo>& result = runs[index].result;
    Json row = {{"set", std::move(settings)}};
    row.update(result.has_value() ? RunToJson(*result)
                                  : Json{{"directory", runs[index].run_dir}, {"state", "not started"}});
    rows.push_back(std::move(row));
  }
  return {{"job", plan.job},
          {"sweep_dir", directory},
          {"report", report.empty() ? Json() : Json(report)},
          {"runs", std::move(rows)}};
}

void PrintTable(const std::vector<SweepRun>& runs, std::ostream& out) {
  std::vector<std::vector<std::string>> rows = {
      {"run", "state", "epochs", "test", "train loss", "samples/s", "directory"}};
  for (const size_t index : Ranking(runs)) {
    const SweepRun& run = runs[index];
    if (!run.result.has_value()) {
      rows.push_back({run.name, "not started", "-", "-", "-", "-", "-"});
      continue;
    }
    const RunInfo& result = *run.result;
    const bool trained = result.summary.steps > 0;
    rows.push_back({run.name, StateName(result.state), EpochsText(result), TestText(result),
                    trained ? ValueText(result.summary.train_loss) : "-",
                    trained ? ValueText(result.summary.samples_per_second) : "-",
                    absl::StrCat(run.run_dir, ErrorText(result))});
  }
  out << TextTable(rows);
}

// Writes the report that compares the runs. Returns its path; empty if there is nothing to compare.
std::string WriteSweepReport(const Plan& plan, const std::string& directory, const std::vector<SweepRun>& runs,
                             std::ostream& err) {
  std::vector<std::string> directories;
  for (const SweepRun& run : runs) {
    if (HoldsRun(run.run_dir)) directories.push_back(run.run_dir);
  }
  const std::string path = RunFolder(directory).report();
  const auto skipped = WriteComparison(absl::StrCat("Sweep of ", plan.job), directories, path);
  if (skipped.ok()) return path;
  err << "warning: the report was not written: " << skipped.status().message() << "\n";
  return "";
}

CommandResult Conclude(const Sweep& sweep, std::ostream& err) {
  if (sweep.interrupted()) return {kExitInterrupted, absl::CancelledError("interrupted")};
  const auto failed = [](const SweepRun& run) {
    return !run.result.has_value() || run.result->state != RunState::kFinished;
  };
  const int64_t failures = std::ranges::count_if(sweep.runs(), failed);
  if (failures == 0) return kExitSuccess;
  const SweepRun& first = *std::ranges::find_if(sweep.runs(), failed);
  const std::string why =
      first.result.has_value() && !first.result->error.empty() ? first.result->error : "it has no result";
  return Fail(err,
              absl::AbortedError(absl::StrCat(failures, " of ", sweep.runs().size(), " runs failed; the first, ",
                                              first.name, ": ", why)),
              kExitFailure);
}

CommandResult RunSweep(const Plan& plan, const std::string& directory, const Arguments& own, std::ostream& out,
                       std::ostream& err) {
  Sweep::Options options;
  options.parallel = plan.parallel;
  options.log_dir = directory + "/logs";
  options.verbose = own.Has("verbose");
  options.terminal = &err == &std::cerr && isatty(STDERR_FILENO) == 1;
  const std::string file = absl::StrCat(directory, "/", kSweepFile);
  Sweep* running = nullptr;
  const auto save = [&](const std::string& report) {
    const std::string text = JsonLine(SweepJson(plan, directory, running->runs(), report));
    if (absl::Status status = WriteFileAtomically(file, {text, "\n"}); !status.ok()) {
      err << "warning: " << status.message() << "\n";
    }
  };
  Sweep sweep(options, MakeRuns(plan, directory), &err, [&] { save(""); });
  running = &sweep;
  save("");
  if (absl::Status status = sweep.Run(); !status.ok()) return Fail(err, status, kExitFailure);
  const std::string report = WriteSweepReport(plan, directory, sweep.runs(), err);
  save(report);
  if (own.Has("json")) {
    out << JsonLine(SweepJson(plan, directory, sweep.runs(), report)) << std::endl;
  } else {
    PrintTable(sweep.runs(), out);
    if (!report.empty()) out << "report: " << report << std::endl;
  }
  return Conclude(sweep, err);
}

}  // namespace

const std::vector<FlagSpec>& SweepFlags() {
  static const auto* flags = new std::vector<FlagSpec>([] {
    std::vector<FlagSpec> all = OwnFlags();
    for (const FlagSpec& flag : LaunchFlags()) {
      if (FindFlag(OwnFlags(), flag.name) == nullptr && std::ranges::find(kRefused, flag.name) == std::end(kRefused)) {
        all.push_back(flag);
      }
    }
    return all;
  }());
  return *flags;
}

CommandResult SweepCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Words> words = SplitWords(args);
  if (!words.ok()) return Fail(err, words.status(), kExitBadInput);
  const absl::StatusOr<Arguments> own = Arguments::Parse(OwnFlags(), words->own);
  if (!own.ok()) return Fail(err, own.status(), kExitBadInput);
  const absl::StatusOr<Arguments> launch = ParseLaunch(words->launch);
  if (!launch.ok()) return Fail(err, launch.status(), kExitBadInput);
  if (own->help()) {
    out << kUsage << DescribeFlags(SweepFlags());
    return kExitSuccess;
  }
  const absl::StatusOr<Plan> plan = ReadPlan(*own, *launch, *words);
  if (!plan.ok()) return Fail(err, plan.status(), kExitBadInput);
  for (const char* role : {"server", "worker"}) {
    if (absl::Status status = FindBinary(role, OwnPath()).status(); !status.ok())
      return Fail(err, status, kExitFailure);
  }
  const absl::StatusOr<std::string> directory = CreateDirectory(own->Get("run-dir", ""), plan->job);
  if (!directory.ok()) return Fail(err, directory.status(), kExitBadInput);
  // If the reader of our output exits, SIGPIPE must not kill this process and orphan its children.
  signal(SIGPIPE, SIG_IGN);
  err << absl::StrFormat("sweep of job %s: %d runs, %d at a time; directory %s", plan->job, plan->points.size(),
                         std::min(plan->parallel, static_cast<int>(plan->points.size())), *directory)
      << std::endl;
  return RunSweep(*plan, *directory, *own, out, err);
}

}  // namespace ballast
