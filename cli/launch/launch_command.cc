// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_command.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/checkpoint/checkpoint_command.h"
#include "cli/command/command.h"
#include "cli/command/server_connection.h"
#include "cli/launch/chaos.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/launch_environment.h"
#include "cli/launch/launch_security.h"
#include "cli/launch/placement.h"
#include "cli/launch/trace_join.h"
#include "cli/report/report.h"
#include "cli/report/run_catalog.h"
#include "common/job/job_config.h"
#include "common/job/job_fields.h"
#include "common/job/job_file.h"
#include "common/job/job_overrides.h"
#include "common/job/job_source.h"
#include "common/program/arguments.h"
#include "common/rpc/credentials.h"
#include "common/run/launch_record.h"
#include "common/run/run_folder.h"
#include "common/run/summary.h"
#include "common/storage/checkpoint_folder.h"
#include "common/text/nearest_name.h"
#include "common/text/number_text.h"
#include "common/trace/timeline_recorder.h"
#include "common/trace/trace_file.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast launch JOB [flags]\n\n"
    "Trains the job described in the text file JOB, or in standard input if JOB is -, on this machine or on those\n"
    "of --hosts: starts servers and workers, shows the progress, and writes metrics, model and report to a run\n"
    "directory. Ctrl-C saves a checkpoint, unless the durability is none, and the model, and stops the job; a\n"
    "second Ctrl-C stops it immediately. Each flag can also be set as an environment variable, such as\n"
    "BALLAST_MODE; the command line takes precedence.\n\n";

constexpr int kMaxProcesses = 64;
constexpr int kMaxThreads = 1024;
constexpr int kMaxGpus = 64;
constexpr int kMaxRestarts = 1000;
constexpr int kMaxGatherSeconds = 86400;

const std::vector<FlagSpec>& Flags() {
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
      {"trace", "FILE", "Write a timeline of all workers (JSON, for ui.perfetto.dev or chrome://tracing)."},
      {"trace-steps", "A-B", "With --trace: the first and last step in the timeline (default: 1-200)."},
      {"insecure", "", "Run without certificates and tokens: any process on this machine can join the job."},
      {"json", "", "Print only the run's summary, as one JSON object, to standard output."},
      {"verbose", "", "Show the logs of all processes; the run directory has them in any case."},
  };
  return *flags;
}

// The parsed command line. `plan` lacks the paths of the programs, of the run directory and of the file in it.
struct Request {
  LaunchPlan plan;
  JobSource source;
  // The job of that source, with all defaults.
  v1::Job job;
  std::string run_dir;
  // Path of the timeline; empty: none.
  std::string trace;
  bool insecure = false;
  bool json = false;
  bool verbose = false;
};

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
  for (const FlagSpec& flag : Flags()) flags.push_back(flag.name);
  if (field.path.empty() || FindNearestName(name, flags).distance <= field.distance) return error;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", name, "; did you mean \"--set ", field.path, "=VALUE\"?"));
}

absl::Status ReadTrace(const Arguments& arguments, Request& request) {
  if (!arguments.Has("trace")) {
    if (!arguments.Has("trace-steps")) return absl::OkStatus();
    return absl::InvalidArgumentError("flag --trace-steps: requires --trace");
  }
  request.trace = arguments.Get("trace", "");
  request.plan.trace_steps = arguments.Get("trace-steps", "1-200");
  if (const auto steps = ParseStepRange(request.plan.trace_steps); !steps.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("flag --trace-steps: ", steps.status().message()));
  }
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

int CoresPerWorker(int workers) { return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / workers); }

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

// Returns the manifest of the newest checkpoint among this job's runs; empty if there is none.
std::string FindNewest(const std::string& runs, const std::string& job) {
  std::string newest;
  int64_t created = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(runs, error)) {
    const absl::StatusOr<std::string> manifest = FindManifest(entry.path().string() + "/checkpoints");
    if (!manifest.ok()) continue;
    const absl::StatusOr<internal::v1::CheckpointManifest> read = ReadManifest(*manifest);
    if (!read.ok() || read->job().name() != job || read->created_unix_ms() <= created) continue;
    created = read->created_unix_ms();
    newest = *manifest;
  }
  return newest;
}

// Returns whether a job of that many epochs has nothing left after the checkpoint.
bool IsDone(const std::string& manifest, uint32_t epochs) {
  const absl::StatusOr<internal::v1::CheckpointManifest> read = ReadManifest(manifest);
  if (!read.ok()) return false;
  uint32_t done = read->leases().next().epoch();
  for (const auto& rank : read->leases().by_rank()) done = std::max(done, rank.epoch());
  return done >= epochs;
}

absl::Status ReadResume(const Arguments& arguments, Request& request) {
  if (!arguments.Has("resume")) return absl::OkStatus();
  const std::string what = arguments.Get("resume", "");
  if (what == "auto") {
    const std::string beside = std::filesystem::path(request.run_dir).lexically_normal().parent_path().string();
    request.plan.resume = FindNewest(request.run_dir.empty() ? kRuns
                                     : beside.empty()        ? "."
                                                             : beside,
                                     request.job.name());
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> manifest = FindManifest(what);
  absl::StatusOr<internal::v1::CheckpointManifest> read = manifest.ok() ? ReadManifest(*manifest) : manifest.status();
  if (!read.ok()) return absl::Status(read.status().code(), absl::StrCat("flag --resume: ", read.status().message()));
  request.plan.resume = *std::move(manifest);
  return absl::OkStatus();
}

absl::StatusOr<Request> ReadRequest(const Arguments& arguments) {
  if (arguments.positional().size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("launch: got %d job files, want exactly one; see --help", arguments.positional().size()));
  }
  Request request;
  request.source.path = arguments.positional()[0];
  request.source.set_files = arguments.GetAll("set-file");
  request.source.sets = arguments.GetAll("set");
  request.run_dir = arguments.Get("run-dir", "");
  if (arguments.Has("run-dir") && request.run_dir.empty()) {
    return absl::InvalidArgumentError("flag --run-dir: got \"\", want a directory");
  }
  request.insecure = arguments.Has("insecure");
  request.json = arguments.Has("json");
  request.verbose = arguments.Has("verbose");
  auto servers = arguments.GetInt("servers", 1, 1, kMaxProcesses);
  if (!servers.ok()) return servers.status();
  if (absl::Status status = ReadHosts(arguments, request.plan); !status.ok()) return status;
  auto workers = arguments.GetInt("workers", request.plan.workers, 1, kMaxProcesses);
  if (!workers.ok()) return workers.status();
  if (arguments.Has("hosts") && *workers != request.plan.workers) {
    return absl::InvalidArgumentError(absl::StrCat("flag --workers: got ", *workers, ", want ", request.plan.workers,
                                                   " as in --hosts, or no --workers"));
  }
  const bool remote = HasOtherHosts(request.plan);
  // Every host shares out its own cores.
  auto threads = arguments.GetInt("threads", remote ? 0 : CoresPerWorker(*workers), 1, kMaxThreads);
  if (!threads.ok()) return threads.status();
  auto overrides = ReadOverrides(arguments);
  if (!overrides.ok()) return overrides.status();
  request.source.overrides = *std::move(overrides);
  // Other hosts look for the data themselves.
  request.source.with_data = !remote;
  if (absl::Status status = ReadTrace(arguments, request); !status.ok()) return status;
  auto gather = arguments.GetInt("gather-timeout", request.plan.gather_seconds, 1, kMaxGatherSeconds);
  if (!gather.ok()) return gather.status();
  request.plan.gather_seconds = *gather;
  auto restarts = arguments.GetInt("max-restarts", request.plan.max_restarts, 0, kMaxRestarts);
  if (!restarts.ok()) return restarts.status();
  request.plan.max_restarts = *restarts;
  if (arguments.Has("chaos")) {
    absl::StatusOr<ChaosPlan> chaos = ParseChaos(arguments.Get("chaos", ""));
    if (!chaos.ok()) return absl::InvalidArgumentError(absl::StrCat("flag --chaos: ", chaos.status().message()));
    request.plan.chaos = *chaos;
  }
  auto device = arguments.GetChoice("device", "auto", {"auto", "cpu", "cuda"});
  if (!device.ok()) return device.status();
  request.plan.servers = *servers;
  request.plan.workers = *workers;
  request.plan.threads = *threads;
  request.plan.device = *device;
  if (absl::Status status = ReadGpus(arguments, request.plan); !status.ok()) return status;
  absl::StatusOr<v1::Job> job = ResolveJob(request.source, *workers);
  if (!job.ok()) return job.status();
  request.job = WithDefaults(*std::move(job));
  if (remote) {
    VisitPaths(request.job, [&](const std::string&, std::string& path) { request.plan.inputs.push_back(path); });
  }
  request.plan.durability = request.job.durability();
  const bool kills_servers = request.plan.chaos.value_or(ChaosPlan()).kill_server != absl::InfiniteDuration();
  const bool returns =
      OutlivesAServer(request.plan.durability) || request.plan.durability.mode() == v1::Durability::CHECKPOINT;
  if (kills_servers && !returns) {
    return absl::InvalidArgumentError(absl::StrCat("flag --chaos: got kill-server with durability ",
                                                   DurabilityName(request.plan.durability.mode()),
                                                   ", want checkpoint, wal, wal_sync or standby: the job would not "
                                                   "survive the loss of a server"));
  }
  if (absl::Status status = ReadResume(arguments, request); !status.ok()) return status;
  return request;
}

// Returns a word as a shell takes it. A line break does not end a comment.
std::string Quoted(absl::string_view word) {
  const bool plain = std::all_of(word.begin(), word.end(),
                                 [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-_./=+,:@[]", c); });
  if (plain && !word.empty()) return std::string(word);
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}, {"\n", " "}, {"\r", " "}}), "'");
}

absl::Status CheckJobFile(const Request& request, const RunFolder& folder) {
  const std::string& file = request.source.path;
  std::error_code error;
  if (std::filesystem::equivalent(file, folder.job(), error)) {
    return absl::InvalidArgumentError(absl::StrCat("run directory ", folder.path(), ": got the job file ", file,
                                                   " in it, which the run would replace; want another directory"));
  }
  return absl::OkStatus();
}

// Writes the job that runs.
absl::Status WriteJob(const Request& request, const RunFolder& folder) {
  const std::string& file = request.source.path;
  std::string flags;
  for (const std::string& flag : ToFlags(request.source))
    absl::StrAppend(&flags, flags.empty() ? " with " : " ", Quoted(flag));
  const LaunchPlan& plan = request.plan;
  std::string comment =
      absl::StrFormat("# Written by ballast launch: %s%s. Paths are absolute, and defaults are filled in.\n",
                      file == "-" ? "standard input" : absl::Utf8SafeCEscape(file), flags);
  absl::StrAppendFormat(&comment,
                        "# Repeat the run with: ballast launch job.textproto --servers %d --workers %d%s "
                        "--device %s%s\n",
                        plan.servers, plan.workers, plan.threads == 0 ? "" : absl::StrCat(" --threads ", plan.threads),
                        plan.device, plan.gpus.empty() ? "" : absl::StrCat(" --gpus ", plan.gpus));
  return SaveJob(folder.job(), request.job, comment);
}

absl::StatusOr<RunFolder> CreateRunFolder(const Request& request) {
  absl::StatusOr<RunFolder> folder = request.run_dir.empty()
                                         ? RunFolder::CreateUnder(kRuns, request.job.name(), absl::Now())
                                         : RunFolder::Create(request.run_dir);
  if (!folder.ok()) return folder.status();
  if (absl::Status status = CheckJobFile(request, *folder); !status.ok()) return status;
  std::error_code error;
  std::filesystem::create_directories(folder->path() + "/logs", error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create the directory ", folder->path(), "/logs"));
  }
  return folder;
}

// Returns the columns of the terminal on standard error.
int TerminalWidth() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

bool IsTerminal(const std::ostream& err) {
  const char* term = std::getenv("TERM");
  return &err == &std::cerr && isatty(STDERR_FILENO) == 1 && term != nullptr && absl::string_view(term) != "dumb";
}

bool SpeaksUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') {
      const std::string name_and_charset = absl::AsciiStrToLower(value);
      return absl::StrContains(name_and_charset, "utf-8") || absl::StrContains(name_and_charset, "utf8");
    }
  }
  return false;
}

// Credentials with which this process itself polls progress and reports ended processes. If they cannot be loaded, the
// job runs without a progress display.
Credentials OwnCredentials(const LaunchSecurity* security) {
  if (security == nullptr) return Credentials::Load({.insecure = true}).value_or(Credentials());
  return Credentials::Load(security->keys().AdminOptions()).value_or(Credentials());
}

// Polls the progress of a launch, and renews its certificates with each poll.
class LaunchProgress : public ProgressSource {
 public:
  // `security` outlives this; null: no certificates.
  LaunchProgress(const std::string& address, const Credentials& credentials, const std::string& job,
                 LaunchSecurity* security)
      : server_(ServerConnection::Open(address, credentials, /*patient=*/true, job)), security_(security) {}

  absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration timeout) override {
    // A failure is retried with the next poll; the certificates stay valid for hours.
    if (security_ != nullptr) security_->RenewIfDue(absl::Now()).IgnoreError();
    return server_->GetProgress(timeout);
  }

  absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration timeout) override {
    return server_->ReportEnd(member, how, timeout);
  }

  absl::StatusOr<v1::SaveCheckpointResponse> SaveCheckpoint(uint64_t id, absl::Duration timeout) override {
    return server_->SaveCheckpoint(id, timeout);
  }

 private:
  const std::unique_ptr<ServerConnection> server_;
  LaunchSecurity* const security_;
};

// While it exists, SIGINT, SIGTERM and SIGHUP do not end this process, which may be writing a file; JobLaunch handles
// them nevertheless. Forgets those that nobody has handled.
class SignalDelay {
 public:
  SignalDelay() {
    sigemptyset(&delayed_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&delayed_, signal);
    pthread_sigmask(SIG_BLOCK, &delayed_, &before_);
  }
  ~SignalDelay() {
    const timespec no_time = {};
    while (sigtimedwait(&delayed_, nullptr, &no_time) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalDelay(const SignalDelay&) = delete;

 private:
  sigset_t delayed_;
  sigset_t before_;
};

// Copies the best model of the run that this one resumes, if the job keeps the best.
void TakeBestModel(const Request& request, const RunFolder& folder, std::ostream& err) {
  if (request.plan.resume.empty() || request.job.training().keep_best() == v1::TEST_METRIC_UNSPECIFIED) return;
  const std::filesystem::path checkpoints = std::filesystem::path(request.plan.resume).parent_path();
  const std::string model = RunFolder(checkpoints.parent_path().string()).model();
  std::error_code error;
  if (checkpoints.filename() != "checkpoints" || !std::filesystem::exists(model, error)) return;
  std::filesystem::copy_file(model, folder.model(), error);
  if (error) err << "warning: " << model << " was not copied: " << error.message() << std::endl;
}

LaunchResult RunJob(Request& request, std::ostream& err) {
  std::unique_ptr<LaunchSecurity> security;
  if (request.insecure) {
    const bool remote = HasOtherHosts(request.plan);
    err << "WARNING: --insecure: any process " << (remote ? "that reaches these hosts" : "on this machine")
        << " can read and change the job" << std::endl;
    if (remote) request.plan.server_security = request.plan.worker_security = {"--insecure"};
  } else {
    std::vector<std::string> hosts;
    for (const JobHost& host : request.plan.hosts) hosts.push_back(host.address);
    auto made = LaunchSecurity::Create(request.plan.run_dir, request.job.name(), hosts, absl::Now());
    if (!made.ok()) return {kExitFailure, std::string(made.status().message())};
    security = *std::move(made);
    request.plan.server_security = security->keys().ServerFlags();
    request.plan.worker_security = security->keys().WorkerFlags();
  }
  const bool terminal = IsTerminal(err);
  const bool colour = terminal && std::getenv("NO_COLOR") == nullptr;
  ProgressDisplay::Options options;
  options.in_place = terminal;
  options.rich = colour && SpeaksUtf8();
  options.width = TerminalWidth;
  options.epochs = request.job.training().epochs();
  options.metrics = RunFolder(request.plan.run_dir).metrics();
  ProgressDisplay display(options, &err, Clock::Real());
  auto print = [&](absl::string_view line) { display.PrintLine(line); };
  LogMerger logs(request.verbose ? std::function<void(absl::string_view)>(print) : nullptr, colour, print);
  return JobLaunch(request.plan, &logs, &display,
                   [&](const std::string& address) {
                     return std::make_unique<LaunchProgress>(address, OwnCredentials(security.get()),
                                                             request.job.name(), security.get());
                   })
      .Run();
}

void PrintSummary(const Summary& summary, std::ostream& out) {
  out << (summary.interrupted ? "stopped after " : "done in ")
      << absl::StrFormat("%.1f s: %s examples at %s samples/s, train loss %.4g in epoch %d\n", summary.seconds,
                         FormatCount(static_cast<double>(summary.examples)), FormatCount(summary.samples_per_second),
                         summary.train_loss, summary.train_loss_epoch);
  if (summary.bytes_sent > 0) {
    out << absl::StrFormat(
        "workers waited %.0f%% of their time for servers; staleness %.2g updates on average, %d at most; %s of "
        "gradients, %s of values\n",
        100 * summary.wait_share, summary.mean_staleness, summary.max_staleness, BytesText(summary.bytes_sent),
        BytesText(summary.bytes_received));
  }
  if (summary.restarts + summary.workers_lost > 0) {
    out << absl::StrFormat("processes restarted %d, workers lost %d, examples repeated %d\n", summary.restarts,
                           summary.workers_lost, summary.examples_repeated);
  }
  if (summary.stopped_early) out << "the training ended early, because the test metric did not improve\n";
  if (summary.best_epoch.has_value()) {
    out << absl::StrFormat("the model and the test results are those of epoch %d, the best\n",
                           static_cast<int>(*summary.best_epoch));
  }
  if (summary.test_accuracy.has_value()) {
    out << absl::StrFormat("test accuracy: %.4f\n", *summary.test_accuracy);
  } else if (summary.test_loss.has_value()) {
    out << absl::StrFormat("test loss: %.4g\n", *summary.test_loss);
  }
}

absl::Status ErrorOf(const LaunchResult& result) {
  if (result.exit_status == kExitInterrupted) return absl::CancelledError("interrupted");
  const absl::StatusCode code = result.exit_status == kExitBadInput    ? absl::StatusCode::kInvalidArgument
                                : result.exit_status == kExitTemporary ? absl::StatusCode::kDeadlineExceeded
                                                                       : absl::StatusCode::kAborted;
  return absl::Status(result.exit_status == kExitSuccess ? absl::StatusCode::kOk : code, result.error);
}

// Writes the report, even of a run that failed early, and prints the results.
CommandResult Conclude(const Request& request, const RunFolder& folder, const LaunchResult& result, std::ostream& out,
                       std::ostream& err) {
  absl::StatusOr<Summary> summary = ReadSummary(folder.summary());
  if (summary.ok() && (result.restarts > 0 || HasOtherHosts(request.plan))) {
    // The worker that wrote the summary does not know of restarts, and may have run on another host.
    summary->restarts = result.restarts;
    summary->run_dir = folder.path();
    if (absl::Status status = WriteSummary(folder.summary(), *summary); !status.ok()) summary = status;
  }
  const absl::Status report = WriteReport(folder.path());
  const bool whole = result.exit_status == kExitSuccess;
  if (!report.ok() && whole) err << "warning: the report was not written: " << report.message() << "\n";
  if (!summary.ok() && whole) return Fail(err, summary.status(), kExitFailure);
  if (!summary.ok() && result.exit_status == kExitInterrupted) {
    err << "warning: nothing was saved: " << summary.status().message() << "\n";
  }
  const bool show = summary.ok() && (whole || result.exit_status == kExitInterrupted);
  if (show && request.json) {
    out << SummaryToJson(*summary) << std::endl;
  } else {
    if (show) PrintSummary(*summary, out);
    if (report.ok()) (request.json || !show ? err : out) << "report: " << folder.report() << std::endl;
  }
  if (!request.trace.empty()) {
    JoinTraces(request.plan.run_dir, request.plan.workers, request.trace, request.json || !show ? err : out, err);
  }
  if (!result.error.empty()) return Fail(err, ErrorOf(result), result.exit_status);
  return {result.exit_status, ErrorOf(result)};
}

}  // namespace

const std::vector<FlagSpec>& LaunchFlags() { return Flags(); }

absl::StatusOr<v1::Job> CheckLaunch(absl::Span<const std::string> args) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return SuggestField(arguments.status(), args);
  absl::StatusOr<Request> request = ReadRequest(*arguments);
  if (!request.ok()) return request.status();
  return std::move(request->job);
}

CommandResult LaunchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  EnvironmentFlags environment = TakeEnvironmentFlags(Flags(), args);
  for (const std::string& line : environment.lines) err << line << std::endl;
  std::vector<std::string> words = std::move(environment.words);
  words.insert(words.end(), args.begin(), args.end());
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), words);
  if (!arguments.ok()) return Fail(err, SuggestField(arguments.status(), args), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  if (arguments->positional() == std::vector<std::string>{"-"} && isatty(STDIN_FILENO) == 1) {
    err << "reading the job from standard input; Ctrl-D ends it" << std::endl;
  }
  absl::StatusOr<Request> request = ReadRequest(*arguments);
  if (!request.ok()) return Fail(err, request.status(), kExitBadInput);
  const absl::StatusOr<std::string> server = FindBinary("server", OwnPath());
  if (!server.ok()) return Fail(err, server.status(), kExitFailure);
  const absl::StatusOr<std::string> worker = FindBinary("worker", OwnPath());
  if (!worker.ok()) return Fail(err, worker.status(), kExitFailure);
  const SignalDelay delay;
  const absl::StatusOr<RunFolder> folder = CreateRunFolder(*request);
  if (!folder.ok()) return Fail(err, folder.status(), kExitBadInput);
  absl::StatusOr<LaunchRecord> record = LaunchRecord::Create(folder->path(), absl::Now());
  if (!record.ok()) return Fail(err, record.status(), kExitBadInput);
  if (absl::Status status = WriteJob(*request, *folder); !status.ok()) return Fail(err, status, kExitBadInput);
  request->plan.server_binary = *server;
  request->plan.worker_binary = *worker;
  request->plan.run_dir = folder->path();
  request->plan.job_file = folder->job();
  if (HasOtherHosts(request->plan)) {
    // On other hosts, a path of this machine must not depend on the working directory.
    std::error_code error;
    request->plan.run_dir = std::filesystem::absolute(folder->path(), error).lexically_normal().string();
    request->plan.job_file = RunFolder(request->plan.run_dir).job();
    if (!request->plan.resume.empty()) {
      request->plan.resume = std::filesystem::absolute(request->plan.resume, error).lexically_normal().string();
    }
  }
  // If the reader of our output exits, SIGPIPE must not kill this process and orphan its children.
  signal(SIGPIPE, SIG_IGN);
  const bool with_standby = request->plan.durability.mode() == v1::Durability::STANDBY;
  err << absl::StrFormat(
             "job %s: %s, servers %d%s, workers %d%s%s; run directory %s", request->job.name(),
             DescribeMode(request->job), request->plan.servers, with_standby ? " with a standby each" : "",
             request->plan.workers,
             request->plan.threads == 0 ? "" : absl::StrFormat(" with %d threads each", request->plan.threads),
             request->plan.hosts.empty() ? ""
                                         : absl::StrFormat(" on %d host%s", request->plan.hosts.size(),
                                                           request->plan.hosts.size() == 1 ? "" : "s"),
             folder->path())
      << std::endl;
  if (arguments->Has("resume")) {
    err << (request->plan.resume.empty() ? "no run of this job has a checkpoint; the job starts from the beginning"
                                         : absl::StrCat("the job resumes from ", request->plan.resume))
        << std::endl;
    if (!request->plan.resume.empty() && IsDone(request->plan.resume, request->job.training().epochs())) {
      err << "all its epochs are done, and nothing is left to train: to train on, raise training.epochs" << std::endl;
    }
  }
  TakeBestModel(*request, *folder, err);
  CommandResult result = Conclude(*request, *folder, RunJob(*request, err), out, err);
  if (absl::Status status = record->End(result.exit_status, result.error.message()); !status.ok()) {
    err << "warning: " << status.message() << "\n";
  }
  return result;
}

}  // namespace ballast
