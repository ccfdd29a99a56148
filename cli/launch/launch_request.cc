// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_request.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/command/command.h"
#include "cli/launch/chaos.h"
#include "cli/launch/placement.h"
#include "cli/report/run_catalog.h"
#include "common/job/job_config.h"
#include "common/job/job_fields.h"
#include "common/job/job_file.h"
#include "common/job/job_overrides.h"
#include "common/program/core_count.h"
#include "common/program/network_link.h"
#include "common/storage/checkpoint_folder.h"
#include "common/text/nearest_name.h"
#include "common/trace/timeline_recorder.h"
#include "common/trace/trace_context.h"
#include "common/trace/trace_file.h"

namespace ballast {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxGpus = 64;
constexpr int kMaxRestarts = 1000;
constexpr int kMaxGatherSeconds = 86400;

// Suggests --set for an unknown flag whose name is nearer to a field of the job than to a flag.
absl::Status SuggestField(const absl::Status& error, absl::Span<const std::string> words) {
  const absl::optional<absl::Cord> unknown = error.GetPayload(kUnknownFlag);
  if (!unknown.has_value()) return error;
  const std::string name(*unknown);
  // The job has the kinds that the user means; its file is the first word that is one.
  v1::Job job;
  for (const std::string& word : words) {
    if (absl::StatusOr<v1::Job> loaded = LoadJob(word); loaded.ok()) job = *std::move(loaded);
  }
  const NearestField field = FindNearestField(job, name);
  std::vector<std::string> flags;
  for (const FlagSpec& flag : LaunchFlags()) flags.push_back(flag.name);
  if (field.path.empty() || FindNearestName(name, flags).distance <= field.distance) return error;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", name, "; did you mean \"--set ", field.path, "=VALUE\"?"));
}

}  // namespace

absl::StatusOr<JobOverrides> ReadOverrides(const Arguments& arguments) {
  JobOverrides overrides;
  if (arguments.Has("staleness") && arguments.Has("steps-ahead")) {
    return absl::InvalidArgumentError("flag --staleness: got it and --steps-ahead, its new name; want one of them");
  }
  for (const OverrideFlag& override : kOverrideFlags) {
    std::string flag = absl::StrReplaceAll(override.name, {{"_", "-"}});
    if (flag == "steps-ahead" && arguments.Has("staleness")) flag = "staleness";
    overrides.*override.value = arguments.Get(flag, "");
    if (arguments.Has(flag) && arguments.Get(flag, "").empty()) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": got \"\", want a value that --help lists"));
    }
  }
  return overrides;
}

namespace {

absl::Status ReadTrace(const Arguments& arguments, LaunchRequest& request) {
  if (!arguments.Has("trace")) {
    if (!arguments.Has("trace-steps")) return absl::OkStatus();
    return absl::InvalidArgumentError("flag --trace-steps: requires --trace");
  }
  request.trace = arguments.Get("trace", "");
  request.plan.trace_steps = arguments.Get("trace-steps", "1-200");
  if (const auto steps = ParseStepRange(request.plan.trace_steps); !steps.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("flag --trace-steps: ", steps.status().message()));
  }
  std::optional<TraceContext> trace = TraceContextOfEnvironment();
  if (!trace.has_value()) {
    trace = NewTrace();
    trace->span = NewSpanId();
  }
  request.plan.traceparent = FormatTraceparent(*trace);
  return CheckTracePath(request.trace);
}

absl::Status ReadHosts(const Arguments& arguments, LaunchPlan& plan) {
  if (!arguments.Has("hosts")) {
    for (const char* flag : {"rsh", "remote-bin"}) {
      if (arguments.Has(flag)) return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": requires --hosts"));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<JobHost>> hosts = ParseHosts(arguments.Get("hosts", ""));
  if (!hosts.ok()) return absl::InvalidArgumentError(absl::StrCat("flag --hosts: ", hosts.status().message()));
  plan.hosts = *std::move(hosts);
  plan.shell.words = absl::StrSplit(arguments.Get("rsh", "ssh"), ' ', absl::SkipEmpty());
  plan.shell.remote_bin = arguments.Get("remote-bin", "");
  plan.shell.own_path = OwnPath();
  if (plan.shell.words.empty()) return absl::InvalidArgumentError("flag --rsh: got \"\", want a command");
  if (arguments.Has("remote-bin") && !absl::StartsWith(plan.shell.remote_bin, "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --remote-bin: got \"", plan.shell.remote_bin, "\", want an absolute path"));
  }
  plan.workers = 0;
  for (const JobHost& host : plan.hosts) plan.workers += host.workers;
  if (plan.workers < 1 || plan.workers > kMaxProcesses) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --hosts: got ", plan.workers, " workers, want 1 to ", kMaxProcesses, " on all hosts"));
  }
  // The other hosts cannot reach this one under "localhost".
  const auto remote =
      std::find_if(plan.hosts.begin(), plan.hosts.end(), [](const JobHost& host) { return !host.local; });
  for (JobHost& host : plan.hosts) {
    if (!host.local || remote == plan.hosts.end()) continue;
    absl::StatusOr<std::string> own = OwnAddressTowards(remote->address);
    if (!own.ok()) return own.status();
    host.address = *std::move(own);
  }
  return absl::OkStatus();
}

int CoresPerWorker(int workers) { return std::max(1, CoreCount() / workers); }

absl::Status ReadGpus(const Arguments& arguments, LaunchPlan& plan) {
  if (!arguments.Has("gpus")) return absl::OkStatus();
  const std::string gpus = arguments.Get("gpus", "");
  if (gpus != "all") {
    if (absl::StatusOr<int> number = arguments.GetInt("gpus", 1, 1, kMaxGpus); !number.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(number.status().message(), ", or all"));
    }
  }
  plan.gpus = gpus;
  return absl::OkStatus();
}

using internal::v1::CheckpointManifest;

struct FoundCheckpoint {
  std::string path;
  CheckpointManifest manifest;
};

// Returns the newest checkpoint among this job's runs, if any.
std::optional<FoundCheckpoint> FindNewest(const std::string& runs, const std::string& job) {
  std::optional<FoundCheckpoint> newest;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(runs, error)) {
    absl::StatusOr<std::string> path = FindManifest(entry.path().string() + "/checkpoints");
    if (!path.ok()) continue;
    absl::StatusOr<CheckpointManifest> manifest = ReadManifest(*path);
    if (!manifest.ok() || manifest->job().name() != job) continue;
    if (newest.has_value() && manifest->created_unix_ms() <= newest->manifest.created_unix_ms()) continue;
    newest = {*std::move(path), *std::move(manifest)};
  }
  return newest;
}

// Returns the checkpoint that --resume names, if there is one.
absl::StatusOr<std::optional<FoundCheckpoint>> FindCheckpoint(const std::string& what, const LaunchRequest& request) {
  if (what == "auto") {
    const std::string beside = std::filesystem::path(request.run_dir).lexically_normal().parent_path().string();
    return FindNewest(request.run_dir.empty() ? kRuns : beside.empty() ? "." : beside, request.job.name());
  }
  absl::StatusOr<std::string> path = FindManifest(what);
  absl::StatusOr<CheckpointManifest> manifest = path.ok() ? ReadManifest(*path) : path.status();
  if (!manifest.ok()) {
    return absl::Status(manifest.status().code(), absl::StrCat("flag --resume: ", manifest.status().message()));
  }
  return FoundCheckpoint{*std::move(path), *std::move(manifest)};
}

}  // namespace

absl::Status ReadResume(const Arguments& arguments, LaunchRequest& request) {
  request.resume = arguments.Has("resume");
  if (!request.resume) return absl::OkStatus();
  const auto checkpoint = FindCheckpoint(arguments.Get("resume", ""), request);
  if (!checkpoint.ok()) return checkpoint.status();
  if (!checkpoint->has_value()) return absl::OkStatus();
  request.plan.resume = (*checkpoint)->path;
  const auto& leases = (*checkpoint)->manifest.leases();
  uint32_t done = leases.next().epoch();
  for (const auto& rank : leases.by_rank()) done = std::max(done, rank.epoch());
  // A program's job has its epochs only once it runs.
  const uint32_t epochs = request.job.training().epochs();
  request.all_epochs_done = epochs > 0 && done >= epochs;
  return absl::OkStatus();
}

const std::vector<FlagSpec>& LaunchFlags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"servers", "N", "Number of parameter servers, 1 to 64 (default: 1)."},
      {"workers", "N", "Number of workers, 1 to 64 (default: 1)."},
      {"set", "FIELD=VALUE", "Set a field of the job, such as training.epochs=3; may be repeated.", false, true},
      {"set-file", "FILE", "Merge a file over the job, before --set; its lists replace the job's; may be repeated.",
       false, true},
      {"hosts", "LIST",
       "Comma-separated hosts on which to run, each HOST, USER@HOST or HOST:N with its number of workers (default: "
       "1)."},
      {"rsh", "COMMAND", "With --hosts: remote shell and its flags, such as 'ssh -p 2222' (default: ssh)."},
      {"remote-bin", "DIR",
       "With --hosts: directory of the programs on other hosts (default: the same as here, otherwise PATH)."},
      {"mode", "MODE", "Consistency mode: sync, async, bounded or local_sgd (default: the job file's policy)."},
      {"steps-ahead", "S", "With --mode bounded: maximum number of steps one worker may be ahead of another, from 0."},
      {"staleness", "S", "Old name of --steps-ahead."},
      {"quorum", "Q", "With --mode sync: number of workers whose gradients complete a step, 1 to all."},
      {"local-steps", "K", "With --mode local_sgd: number of local steps between pushes."},
      {"codec", "CODEC",
       "Gradient encoding: fp32, fp16, bf16, int8, top_k or sign; fp16 and bf16 also apply to values."},
      {"value-codec", "CODEC", "Value encoding: fp32, fp16, bf16 or int8."},
      {"precision", "PRECISION", "Compute precision of workers: fp32, tf32, bf16 or fp16; CPUs support only fp32."},
      {"durability", "MODE", "Protection against lost servers: none, checkpoint, wal, wal_sync or standby."},
      {"device", "auto|cpu|cuda", "Compute device of workers (default: auto, a GPU if there is one)."},
      {"gpus", "N|all", "Number of GPUs over which each worker splits its batches (default: 1)."},
      {"threads", "N", "Compute threads per worker (default: cores / workers)."},
      {"run-dir", "DIR", "Run directory; must be new or empty (default: runs/JOB-TIME)."},
      {"resume", "WHAT",
       "Checkpoint to resume from: a run directory, a manifest, or auto (this job's newest checkpoint in any run)."},
      {"gather-timeout", "SECONDS",
       "Timeout for all processes to join, 1 to 86400 (default: 300); exits with 75 and names the missing processes."},
      {"max-restarts", "N", "Maximum number of restarts per process, 0 to 1000 (default: 3)."},
      {"chaos", "KILLS",
       "Kill processes at intervals to test recovery: any of kill-server=20s,kill-worker=30s,seed=1."},
      {"trace", "FILE", "Write a timeline of all workers and servers (JSON, for ui.perfetto.dev or chrome://tracing)."},
      {"trace-steps", "A-B", "With --trace: the first and last step in the timeline (default: 1-200)."},
      {"insecure", "", "Run without certificates and tokens: any process on this machine can join the job."},
      {"json", "", "Print only the run's summary, as one JSON object, to standard output."},
      {"page", "", "Serve the live page of the run on 127.0.0.1 while it runs, and print its address."},
      {"verbose", "", "Show the logs of all processes; the run directory has them in any case."},
  };
  return *flags;
}

absl::StatusOr<Arguments> ParseLaunch(absl::Span<const std::string> words) {
  absl::StatusOr<Arguments> arguments = Arguments::Parse(LaunchFlags(), words);
  if (!arguments.ok()) return SuggestField(arguments.status(), words);
  return arguments;
}

absl::Status ReadCommonFlags(const Arguments& arguments, LaunchRequest& request) {
  request.run_dir = arguments.Get("run-dir", "");
  if (arguments.Has("run-dir") && request.run_dir.empty()) {
    return absl::InvalidArgumentError("flag --run-dir: got \"\", want a directory");
  }
  request.insecure = arguments.Has("insecure");
  request.json = arguments.Has("json");
  request.verbose = arguments.Has("verbose");
  request.page = arguments.Has("page");
  LaunchPlan& plan = request.plan;
  auto servers = arguments.GetInt("servers", 1, 1, kMaxProcesses);
  if (!servers.ok()) return servers.status();
  if (absl::Status status = ReadHosts(arguments, plan); !status.ok()) return status;
  auto workers = arguments.GetInt("workers", plan.workers, 1, kMaxProcesses);
  if (!workers.ok()) return workers.status();
  if (arguments.Has("hosts") && *workers != plan.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --workers: got ", *workers, ", want ", plan.workers, " as in --hosts, or no --workers"));
  }
  // Every host shares out its own cores.
  auto threads = arguments.GetInt("threads", HasOtherHosts(plan) ? 0 : CoresPerWorker(*workers), 1, kMaxThreads);
  if (!threads.ok()) return threads.status();
  auto gather = arguments.GetInt("gather-timeout", plan.gather_seconds, 1, kMaxGatherSeconds);
  if (!gather.ok()) return gather.status();
  plan.gather_seconds = *gather;
  auto restarts = arguments.GetInt("max-restarts", plan.max_restarts, 0, kMaxRestarts);
  if (!restarts.ok()) return restarts.status();
  plan.max_restarts = *restarts;
  if (arguments.Has("chaos")) {
    absl::StatusOr<ChaosPlan> chaos = ParseChaos(arguments.Get("chaos", ""));
    if (!chaos.ok()) return absl::InvalidArgumentError(absl::StrCat("flag --chaos: ", chaos.status().message()));
    plan.chaos = *chaos;
  }
  plan.servers = *servers;
  plan.workers = *workers;
  plan.threads = *threads;
  return absl::OkStatus();
}

absl::Status CheckChaos(const LaunchPlan& plan) {
  const bool kills_servers = plan.chaos.value_or(ChaosPlan()).kill_server != absl::InfiniteDuration();
  const bool returns = OutlivesAServer(plan.durability) || plan.durability.mode() == v1::Durability::CHECKPOINT;
  if (kills_servers && !returns) {
    return absl::InvalidArgumentError(absl::StrCat("flag --chaos: got kill-server with durability ",
                                                   DurabilityName(plan.durability.mode()),
                                                   ", want checkpoint, wal, wal_sync or standby: the job would not "
                                                   "survive the loss of a server"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LaunchRequest> ReadLaunchRequest(const Arguments& arguments) {
  if (arguments.positional().size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("launch: got %d job files, want exactly one; see --help", arguments.positional().size()));
  }
  LaunchRequest request;
  request.source.path = arguments.positional()[0];
  request.source.set_files = arguments.GetAll("set-file");
  request.source.sets = arguments.GetAll("set");
  if (absl::Status status = ReadCommonFlags(arguments, request); !status.ok()) return status;
  const bool remote = HasOtherHosts(request.plan);
  auto overrides = ReadOverrides(arguments);
  if (!overrides.ok()) return overrides.status();
  request.source.overrides = *std::move(overrides);
  // Other hosts look for the data themselves.
  request.source.with_data = !remote;
  if (absl::Status status = ReadTrace(arguments, request); !status.ok()) return status;
  auto device = arguments.GetChoice("device", "auto", {"auto", "cpu", "cuda"});
  if (!device.ok()) return device.status();
  request.plan.device = *device;
  if (absl::Status status = ReadGpus(arguments, request.plan); !status.ok()) return status;
  absl::StatusOr<v1::Job> job = ResolveJob(request.source, request.plan.workers);
  if (!job.ok()) return job.status();
  request.job = WithDefaults(*std::move(job));
  if (remote) {
    VisitPaths(request.job, [&](const std::string&, std::string& path) { request.plan.inputs.push_back(path); });
  }
  request.plan.job = request.job.name();
  request.plan.durability = request.job.durability();
  if (absl::Status status = CheckChaos(request.plan); !status.ok()) return status;
  if (absl::Status status = ReadResume(arguments, request); !status.ok()) return status;
  return request;
}

absl::StatusOr<v1::Job> CheckLaunch(absl::Span<const std::string> words) {
  const absl::StatusOr<Arguments> arguments = ParseLaunch(words);
  if (!arguments.ok()) return arguments.status();
  absl::StatusOr<LaunchRequest> request = ReadLaunchRequest(*arguments);
  if (!request.ok()) return request.status();
  return std::move(request->job);
}

}  // namespace ballast
