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
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/checkpoint/checkpoint_command.h"
#include "cli/command/arguments.h"
#include "cli/command/binary_finder.h"
#include "cli/command/command.h"
#include "cli/command/server_connection.h"
#include "cli/launch/chaos.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/launch_security.h"
#include "cli/launch/trace_join.h"
#include "cli/report/report.h"
#include "common/job/durability_config.h"
#include "common/job/job_file.h"
#include "common/job/job_length.h"
#include "common/job/job_overrides.h"
#include "common/rpc/credentials.h"
#include "common/run/run_folder.h"
#include "common/run/summary.h"
#include "common/storage/checkpoint_folder.h"
#include "common/text/number_text.h"
#include "common/trace/timeline_recorder.h"
#include "common/trace/trace_file.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast launch JOB [flags]\n\n"
    "Trains the job that the text file JOB describes, on this machine: starts servers and workers, shows how far they\n"
    "are, and leaves metrics, model and report in a run folder. Ctrl-C saves what is there; twice ends at once.\n\n";

constexpr int kMostProcesses = 64;
constexpr int kMostThreads = 1024;
constexpr int kMostGpus = 64;
constexpr int kMostRestarts = 1000;
constexpr int kMostGatherSeconds = 86400;

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"servers", "N", "Parameter servers, 1 to 64 (1)."},
      {"workers", "N", "Workers, 1 to 64 (1)."},
      {"mode", "MODE", "sync, async, bounded or local_sgd, instead of the job file's policy."},
      {"staleness", "S", "With mode bounded: how many steps a worker may be ahead of another, from 0."},
      {"quorum", "Q", "With mode sync: how many workers' gradients a step waits for, 1 to all."},
      {"local-steps", "K", "With mode local_sgd: how many steps of its own a worker makes between pushes."},
      {"codec", "CODEC", "How gradients travel: fp32, fp16, bf16, int8, top_k or sign; fp16 and bf16 values, too."},
      {"value-codec", "CODEC", "How values travel: fp32, fp16, bf16 or int8."},
      {"precision", "PRECISION", "What workers compute in: fp32, tf32, bf16 or fp16; the CPU has fp32 alone."},
      {"durability", "MODE", "What the job outlives: none, checkpoint, wal, wal_sync or replica."},
      {"device", "auto|cpu|cuda", "What workers compute on (auto: a GPU where there is one)."},
      {"gpus", "N|all", "With GPUs: over how many of them each worker splits its batches (1)."},
      {"threads", "N", "Of each worker (this machine's cores shared out among the workers)."},
      {"run-dir", "DIR", "A new or empty run folder (runs/JOB-TIME)."},
      {"resume", "WHAT",
       "Go on from a checkpoint: of a run folder, by its manifest, or auto: this job's newest run that has one."},
      {"gather-timeout", "SECONDS",
       "Longest wait for all processes to join, 1 to 86400 (300); then it ends with 75 and says who is missing."},
      {"max-restarts", "N", "How often a process that died is started again, 0 to 1000 (3)."},
      {"chaos", "KILLS",
       "Kill processes of the run to see it outlive that: kill-server=20s,kill-worker=30s,seed=1, or a part of it."},
      {"trace", "FILE",
       "Leave a timeline of all workers there (JSON; open it with ui.perfetto.dev or chrome://tracing)."},
      {"trace-steps", "A-B", "With trace: the first and the last step that it shows (1-200)."},
      {"insecure", "", "Without certificates and tokens: any process of this machine may take part."},
      {"json", "", "Print the run's summary as one JSON object, and nothing else, to the output."},
      {"verbose", "", "Show what all processes log; it is in the run folder in any case."},
  };
  return *flags;
}

// Beside which folders run folders are made that have no name of their own.
constexpr char kRuns[] = "runs";

// What was asked for, but for what depends on the machine.
struct Request {
  LaunchPlan plan;
  v1::Job job;
  std::string run_dir;
  // Empty: none.
  std::string trace;
  bool insecure = false;
  bool json = false;
  bool verbose = false;
};

absl::StatusOr<JobOverrides> ReadOverrides(const Arguments& arguments) {
  JobOverrides overrides;
  const std::pair<const char*, std::string*> flags[] = {{"mode", &overrides.mode},
                                                        {"staleness", &overrides.staleness},
                                                        {"quorum", &overrides.quorum},
                                                        {"codec", &overrides.codec},
                                                        {"local-steps", &overrides.local_steps},
                                                        {"value-codec", &overrides.value_codec},
                                                        {"precision", &overrides.precision},
                                                        {"durability", &overrides.durability}};
  for (const auto& [flag, value] : flags) {
    *value = arguments.Get(flag, "");
    if (arguments.Has(flag) && value->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": got \"\", want what --help says"));
    }
  }
  return overrides;
}

absl::Status ReadTrace(const Arguments& arguments, Request& request) {
  if (!arguments.Has("trace")) {
    if (!arguments.Has("trace-steps")) return absl::OkStatus();
    return absl::InvalidArgumentError("flag --trace-steps: want --trace beside it");
  }
  request.trace = arguments.Get("trace", "");
  request.plan.trace_steps = arguments.Get("trace-steps", "1-200");
  if (const auto steps = ParseStepRange(request.plan.trace_steps); !steps.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("flag --trace-steps: ", steps.status().message()));
  }
  return CheckTracePath(request.trace);
}

int CoresPerWorker(int workers) { return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / workers); }

absl::Status ReadGpus(const Arguments& arguments, LaunchPlan& plan) {
  if (!arguments.Has("gpus")) return absl::OkStatus();
  const std::string gpus = arguments.Get("gpus", "");
  if (gpus != "all") {
    if (absl::StatusOr<int> number = arguments.GetInt("gpus", 1, 1, kMostGpus); !number.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(number.status().message(), ", or all"));
    }
  }
  plan.job_flags.insert(plan.job_flags.end(), {"--gpus", gpus});
  return absl::OkStatus();
}

// The newest checkpoint among this job's runs; empty where there is none.
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
        absl::StrFormat("launch wants one job file, got %d; see --help", arguments.positional().size()));
  }
  Request request;
  request.plan.job_file = arguments.positional()[0];
  request.run_dir = arguments.Get("run-dir", "");
  if (arguments.Has("run-dir") && request.run_dir.empty()) {
    return absl::InvalidArgumentError("flag --run-dir: got \"\", want a folder");
  }
  request.insecure = arguments.Has("insecure");
  request.json = arguments.Has("json");
  request.verbose = arguments.Has("verbose");
  auto servers = arguments.GetInt("servers", 1, 1, kMostProcesses);
  if (!servers.ok()) return servers.status();
  auto workers = arguments.GetInt("workers", 1, 1, kMostProcesses);
  if (!workers.ok()) return workers.status();
  auto threads = arguments.GetInt("threads", CoresPerWorker(*workers), 1, kMostThreads);
  if (!threads.ok()) return threads.status();
  auto overrides = ReadOverrides(arguments);
  if (!overrides.ok()) return overrides.status();
  if (absl::Status status = ReadTrace(arguments, request); !status.ok()) return status;
  auto gather = arguments.GetInt("gather-timeout", request.plan.gather_seconds, 1, kMostGatherSeconds);
  if (!gather.ok()) return gather.status();
  request.plan.gather_seconds = *gather;
  auto restarts = arguments.GetInt("max-restarts", request.plan.max_restarts, 0, kMostRestarts);
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
  request.plan.job_flags = ToFlags(*overrides);
  request.plan.device = *device;
  if (absl::Status status = ReadGpus(arguments, request.plan); !status.ok()) return status;
  absl::StatusOr<v1::Job> job = LoadJob(request.plan.job_file);
  if (!job.ok()) return job.status();
  job = Override(*std::move(job), *overrides, *workers);
  if (!job.ok()) return job.status();
  request.job = *std::move(job);
  request.plan.durability = request.job.durability();
  const bool kills_servers = request.plan.chaos.value_or(ChaosPlan()).kill_server != absl::InfiniteDuration();
  const bool returns =
      OutlivesAServer(request.plan.durability) || request.plan.durability.mode() == v1::Durability::CHECKPOINT;
  if (kills_servers && !returns) {
    return absl::InvalidArgumentError(absl::StrCat("flag --chaos: got kill-server with durability ",
                                                   DurabilityName(request.plan.durability.mode()),
                                                   ", want checkpoint, wal, wal_sync or replica: the job would not "
                                                   "outlive it"));
  }
  if (absl::Status status = ReadResume(arguments, request); !status.ok()) return status;
  return request;
}

absl::StatusOr<RunFolder> CreateRunFolder(const Request& request) {
  absl::StatusOr<RunFolder> folder = request.run_dir.empty()
                                         ? RunFolder::CreateUnder(kRuns, request.job.name(), absl::Now())
                                         : RunFolder::Create(request.run_dir);
  if (!folder.ok()) return folder.status();
  std::error_code error;
  std::filesystem::create_directories(folder->path() + "/logs", error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make the folder ", folder->path(), "/logs"));
  }
  return folder;
}

// Of the terminal behind standard error.
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

// Shown by this process itself, which also says of others that they have ended. Without them there is no progress to be
// seen, and the job goes on all the same.
Credentials OwnCredentials(const LaunchSecurity* security) {
  if (security == nullptr) return {};
  return Credentials::Load(security->keys().AdminOptions()).value_or(Credentials());
}

// Asks a launch's server how far the job is, and sees to its certificates meanwhile.
class LaunchProgress : public ProgressSource {
 public:
  // `security` outlives this; null: there are no certificates.
  LaunchProgress(const std::string& address, const Credentials& credentials, const std::string& job,
                 LaunchSecurity* security)
      : server_(ServerConnection::Open(address, credentials, /*patient=*/true, job)), security_(security) {}

  absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration timeout) override {
    // What fails now is tried again the next time; there are hours left.
    if (security_ != nullptr) security_->RenewIfDue(absl::Now()).IgnoreError();
    return server_->GetProgress(timeout);
  }

  absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration timeout) override {
    return server_->ReportEnd(member, how, timeout);
  }

 private:
  const std::unique_ptr<ServerConnection> server_;
  LaunchSecurity* const security_;
};

LaunchResult RunJob(Request& request, std::ostream& err) {
  std::unique_ptr<LaunchSecurity> security;
  if (request.insecure) {
    err << "WARNING: --insecure: any process of this machine can read and change the job" << std::endl;
  } else {
    auto made = LaunchSecurity::Create(request.plan.run_dir, request.job.name(), absl::Now());
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
  options.examples_per_step = BatchesPerPush(request.job) * request.job.training().batch_size() * request.plan.workers;
  ProgressDisplay display(options, &err, Clock::Real());
  auto print = [&](absl::string_view line) { display.PrintLine(line); };
  LogMerger logs(request.verbose ? std::function<void(absl::string_view)>(print) : nullptr, colour);
  return JobLaunch(request.plan, &logs, &display,
                   [&](const std::string& address) {
                     return std::make_unique<LaunchProgress>(address, OwnCredentials(security.get()),
                                                             request.job.name(), security.get());
                   })
      .Run();
}

void PrintSummary(const Summary& summary, std::ostream& out) {
  out << (summary.interrupted ? "stopped after " : "done in ")
      << absl::StrFormat("%.1f s: %s examples at %s samples/s, train loss %.4f\n", summary.seconds,
                         FormatCount(static_cast<double>(summary.examples)), FormatCount(summary.samples_per_second),
                         summary.train_loss);
  if (summary.bytes_sent > 0) {
    out << absl::StrFormat(
        "worker 0 waited %.0f%% of the time; staleness %.2g on average, %d at most; %s of gradients, %s of "
        "weights\n",
        100 * summary.wait_share, summary.mean_staleness, summary.max_staleness, BytesText(summary.bytes_sent),
        BytesText(summary.bytes_received));
  }
  if (summary.restarts + summary.workers_lost > 0) {
    out << absl::StrFormat("processes restarted %d, workers lost %d, examples repeated %d\n", summary.restarts,
                           summary.workers_lost, summary.examples_repeated);
  }
  if (summary.test_accuracy.has_value()) out << absl::StrFormat("test accuracy: %.4f\n", *summary.test_accuracy);
}

// Writes the report of what the run left, which may be little, and prints the results; answers the exit status.
int Conclude(const Request& request, const RunFolder& folder, const LaunchResult& result, std::ostream& out,
             std::ostream& err) {
  absl::StatusOr<Summary> summary = ReadSummary(folder.summary());
  if (summary.ok() && result.restarts > 0) {
    // The worker that wrote it does not know.
    summary->restarts = result.restarts;
    if (absl::Status status = WriteSummary(folder.summary(), *summary); !status.ok()) summary = status;
  }
  const absl::Status report = WriteReport(folder.path());
  const bool whole = result.exit_status == kExitSuccess;
  if (!report.ok() && whole) err << "warning: no report: " << report.message() << "\n";
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
  if (!result.error.empty()) return Fail(err, absl::UnknownError(result.error), result.exit_status);
  return result.exit_status;
}

}  // namespace

int LaunchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  absl::StatusOr<Request> request = ReadRequest(*arguments);
  if (!request.ok()) return Fail(err, request.status(), kExitBadInput);
  const absl::StatusOr<std::string> server = FindBinary("server", OwnPath());
  if (!server.ok()) return Fail(err, server.status(), kExitFailure);
  const absl::StatusOr<std::string> worker = FindBinary("worker", OwnPath());
  if (!worker.ok()) return Fail(err, worker.status(), kExitFailure);
  const absl::StatusOr<RunFolder> folder = CreateRunFolder(*request);
  if (!folder.ok()) return Fail(err, folder.status(), kExitBadInput);
  request->plan.server_binary = *server;
  request->plan.worker_binary = *worker;
  request->plan.run_dir = folder->path();
  // Whoever read our output may go; the children must not be left alone for it.
  signal(SIGPIPE, SIG_IGN);
  const bool with_standby = request->plan.durability.mode() == v1::Durability::STANDBY;
  err << absl::StrFormat("job %s: %s, servers %d%s, workers %d of %d threads; run folder %s", request->job.name(),
                         DescribeMode(request->job), request->plan.servers, with_standby ? " with a standby each" : "",
                         request->plan.workers, request->plan.threads, folder->path())
      << std::endl;
  if (arguments->Has("resume")) {
    err << (request->plan.resume.empty() ? "no run of this job has a checkpoint; it begins anew"
                                         : absl::StrCat("resumes from ", request->plan.resume))
        << std::endl;
  }
  const LaunchResult result = RunJob(*request, err);
  return Conclude(*request, *folder, result, out, err);
}

}  // namespace ballast
