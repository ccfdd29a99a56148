// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/flight/flight_dump.h"
#include "common/http/status_server.h"
#include "common/job/job_overrides.h"
#include "common/program/core_count.h"
#include "common/program/env_flags.h"
#include "common/program/signal_watch.h"
#include "common/program/this_process.h"
#include "common/rpc/credentials.h"
#include "common/security/tokens.h"
#include "common/storage/file.h"
#include "common/text/number_text.h"
#include "worker/device/cuda_options.h"
#include "worker/predict/predict_command.h"
#include "worker/serve/serve_command.h"
#include "worker/training/worker.h"
#include "worker/training/worker_metrics.h"

ABSL_FLAG(std::string, job, "", "Path of the job file (see examples/*.textproto). Required.");
ABSL_FLAG(std::string, coordinator, "127.0.0.1:7700", "HOST:PORT of server 0.");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file of the CA certificates that signed the servers' certificates; turns TLS on.");
ABSL_FLAG(std::string, tls_cert, "", "PEM file of this worker's certificate, for servers that require one.");
ABSL_FLAG(std::string, tls_key, "", "PEM file of the private key of --tls_cert; must be readable by this user only.");
ABSL_FLAG(std::string, token_file, "",
          "File with the token that servers require, as one line: worker, a job name or *, and the token.");
ABSL_FLAG(bool, insecure, false, "Connect to servers on other machines without TLS.");
ABSL_FLAG(std::string, rank, "", "Rank of this worker, or a pod name that ends in it; empty: the next free rank.");
ABSL_FLAG(std::string, device, "auto", "Device to compute on: auto, cpu or cuda.");
ABSL_FLAG(std::string, gpus, "1", "With --device cuda: number of GPUs that share each batch, or all.");
ABSL_FLAG(bool, autotune, true,
          "On a GPU: time several algorithms at the first use of each shape, and cache the fastest for later runs. "
          "If false, the libraries choose by heuristic and runs are reproducible bit for bit.");
ABSL_FLAG(bool, cuda_graphs, true, "On a GPU: record the operations that repeat in every batch as CUDA graphs.");
ABSL_FLAG(int, threads, 0, "Number of compute threads on the CPU; 0: one per core.");
ABSL_FLAG(std::string, http_port, "",
          "Port of the HTTP pages /healthz, /readyz and /metrics on 127.0.0.1, or HOST:PORT; 0 picks a free port. With "
          "--tls_cert they are HTTPS. Empty: none.");
ABSL_FLAG(std::string, http_address_file, "", "File to which the address of the HTTP pages is written.");
ABSL_FLAG(
    std::string, http_token_file, "",
    "File with the tokens that may read /metrics, in the format of a server's --token_file. Empty: --token_file.");
ABSL_FLAG(
    std::string, flight_dir, "",
    "Directory to which the newest 10,000 events are written as flight-worker-RANK-PID.jsonl when the worker fails "
    "and at SIGQUIT. Empty: SIGQUIT ends the worker.");
ABSL_FLAG(bool, flight_recorder, true, "Keep the newest 10,000 events in memory, for /flight and --flight_dir.");
ABSL_FLAG(std::string, run_dir, "", "Directory to which worker 0 writes the results; empty: runs/<job>-<time>.");
ABSL_FLAG(bool, continue_run, false,
          "Worker 0 continues in a --run_dir that holds a run, instead of refusing it. Only for a run of the same job "
          "that starts again.");
ABSL_FLAG(
    std::string, mode, "",
    "Consistency mode that replaces the job file's: sync, async, bounded or local_sgd. Must be the same for all "
    "workers, like --steps_ahead, --quorum, --local_steps, --codec, --value_codec, --precision and --durability.");
ABSL_FLAG(std::string, steps_ahead, "",
          "With --mode bounded: number of steps that a worker may be ahead of the slowest.");
ABSL_FLAG(std::string, staleness, "", "Old name of --steps_ahead.");
ABSL_FLAG(std::string, quorum, "", "With --mode sync: number of workers whose gradients complete a step.");
ABSL_FLAG(std::string, local_steps, "",
          "With --mode local_sgd: number of local steps that a worker makes between pushes.");
ABSL_FLAG(std::string, codec, "",
          "Encoding of gradients: fp32, fp16, bf16, int8, top_k or sign. Values "
          "use the same encoding with fp16 and bf16, otherwise fp32, unless --value_codec is given.");
ABSL_FLAG(std::string, value_codec, "", "Encoding of values: fp32, fp16, bf16 or int8.");
ABSL_FLAG(bool, shared_memory, true, "Exchange messages with servers on this machine through shared memory.");
ABSL_FLAG(
    bool, data_streams, true,
    "Exchange messages with servers on other machines on a second connection to each; otherwise each message is a "
    "gRPC call.");
ABSL_FLAG(std::string, durability, "", "Durability of the job's state: none, checkpoint, wal, wal_sync or standby.");
ABSL_FLAG(std::string, precision, "", "Precision to compute in: fp32, tf32, bf16 or fp16; the CPU has only fp32.");
ABSL_FLAG(
    std::string, trace, "",
    "Output file for a timeline of compute, copies, pushes, pulls and waits (JSON; open it with ui.perfetto.dev or "
    "chrome://tracing).");
ABSL_FLAG(std::string, trace_steps, "1-200", "With --trace: first and last step of the timeline; steps count from 1.");
ABSL_FLAG(std::string, traceparent, "",
          "With --trace: W3C trace context that the messages of the timeline belong to; by default the environment's "
          "TRACEPARENT, or a new trace.");
ABSL_FLAG(
    int, gather_timeout, 300,
    "Seconds for all servers and workers to join; after that the worker exits with 75 and names the missing ones.");
ABSL_FLAG(
    std::string, run_by, "",
    "orchestrator: a job that was lost with a server's shard exits with 69 instead of 1, because an orchestrator reads "
    "exit codes.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "ballast_worker: computes gradients of a job's model and exchanges them with its servers.\n"
    "SIGTERM or SIGINT ends it after the current step, with exit code 130; worker 0 saves the current results.\n"
    "A second signal ends it immediately.\n"
    "Exit codes: 1: the job has failed. 2: bad input. 3: this worker lost its device or its connections; the job\n"
    "continues and the worker may be restarted. 75: other members were missing for longer than --gather_timeout;\n"
    "the worker may be restarted. 69, with --run_by=orchestrator: the job was lost with a server's shard; all its\n"
    "processes should start again, from the newest checkpoint.\n\n"
    "  ballast_worker --job examples/fashion_mnist.textproto --coordinator 127.0.0.1:7700\n\n"
    "`ballast predict`, `ballast eval` and `ballast serve` run ballast_worker with that word as the first argument.";

constexpr char kOrchestrator[] = "orchestrator";

// One day, because cluster schedulers may keep pods pending for hours.
constexpr int kMaxGatherSeconds = 86400;
// EX_UNAVAILABLE and EX_TEMPFAIL of sysexits.h.
constexpr int kExitJobLost = 69;
constexpr int kExitTemporary = 75;

int Fail(const absl::Status& status, int code) {
  if (!absl::IsCancelled(status)) FlightDumper::Request(std::string(status.message()));
  std::cerr << "error: " << status.message() << std::endl;
  return code;
}

// Handles SIGINT and SIGTERM: the first one interrupts the worker once it has joined; any other ends the process.
class Interruption {
 public:
  void Signal(int count) {
    absl::MutexLock lock(&mutex_);
    if (count == 1 && worker_ != nullptr && worker_->Interrupt()) return;
    std::cerr << "error: interrupted" << std::endl;
    _exit(130);
  }
  void Watch(Worker* worker) {
    absl::MutexLock lock(&mutex_);
    worker_ = worker;
  }

 private:
  absl::Mutex mutex_;
  Worker* worker_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

absl::StatusOr<Worker::Options> ReadOptions() {
  Worker::Options options;
  const std::string path = absl::GetFlag(FLAGS_job);
  if (path.empty()) return absl::InvalidArgumentError("--job is required; see --help");
  JobOverrides overrides;
  for (const OverrideFlag& flag : kOverrideFlags) {
    overrides.*flag.value = absl::FindCommandLineFlag(flag.name)->CurrentValue();
  }
  if (const std::string old = absl::GetFlag(FLAGS_staleness); !old.empty()) {
    if (!overrides.steps_ahead.empty()) {
      return absl::InvalidArgumentError("--staleness: got it and --steps_ahead, its new name; want one of them");
    }
    overrides.steps_ahead = old;
  }
  absl::StatusOr<v1::Job> job = ResolveJob(path, overrides, /*workers=*/0);
  if (!job.ok()) return job.status();
  options.job = *std::move(job);
  options.job_folder = std::filesystem::path(path).parent_path().string();
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  absl::StatusOr<Credentials> credentials =
      Credentials::Load({{absl::GetFlag(FLAGS_tls_cert), absl::GetFlag(FLAGS_tls_key), absl::GetFlag(FLAGS_tls_ca)},
                         absl::GetFlag(FLAGS_token_file),
                         absl::GetFlag(FLAGS_insecure)});
  if (!credentials.ok()) return credentials.status();
  if (absl::Status status = credentials->CheckTarget(options.coordinator); !status.ok()) return status;
  options.credentials = *std::move(credentials);
  if (const std::string text = absl::GetFlag(FLAGS_rank); !text.empty()) {
    const int rank = ParseRank(text);
    if (rank < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rank: got \"", text, "\", want a number or a name that ends in -N"));
    }
    options.rank = rank;
  }
  options.device = absl::GetFlag(FLAGS_device);
  options.gpus = absl::GetFlag(FLAGS_gpus);
  options.cuda = CachingCudaOptions();
  options.cuda.autotune = absl::GetFlag(FLAGS_autotune);
  options.cuda.graphs = absl::GetFlag(FLAGS_cuda_graphs);
  const int threads = absl::GetFlag(FLAGS_threads);
  if (threads < 0) return absl::InvalidArgumentError(absl::StrCat("--threads: got ", threads, ", want 0 to 1024"));
  options.threads = threads > 0 ? threads : CoreCount();
  options.run_dir = absl::GetFlag(FLAGS_run_dir);
  options.continues_run = absl::GetFlag(FLAGS_continue_run);
  options.shared_memory = absl::GetFlag(FLAGS_shared_memory);
  options.data_streams = absl::GetFlag(FLAGS_data_streams);
  options.trace = absl::GetFlag(FLAGS_trace);
  absl::StatusOr<StepRange> steps = ParseStepRange(absl::GetFlag(FLAGS_trace_steps));
  if (!steps.ok()) return absl::InvalidArgumentError(absl::StrCat("--trace_steps: ", steps.status().message()));
  options.trace_steps = *steps;
  if (const std::string traceparent = absl::GetFlag(FLAGS_traceparent); !traceparent.empty()) {
    const absl::StatusOr<TraceContext> context = ParseTraceparent(traceparent);
    if (!context.ok()) return absl::InvalidArgumentError(absl::StrCat("--traceparent: ", context.status().message()));
    options.trace_context = *context;
  } else {
    options.trace_context = TraceContextOfEnvironment().value_or(options.trace_context);
  }
  const int gather_timeout = absl::GetFlag(FLAGS_gather_timeout);
  if (gather_timeout < 1 || gather_timeout > kMaxGatherSeconds) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gather_timeout: got ", gather_timeout, ", want 1 to ", kMaxGatherSeconds));
  }
  options.gather_timeout = absl::Seconds(gather_timeout);
  if (const std::string run_by = absl::GetFlag(FLAGS_run_by); !run_by.empty() && run_by != kOrchestrator) {
    return absl::InvalidArgumentError(absl::StrCat("--run_by: got \"", run_by, "\", want orchestrator or nothing"));
  }
  return options;
}

// Returns "worker 3"; "worker" if the coordinator chooses the rank.
std::string FlightName() {
  const std::string rank = absl::GetFlag(FLAGS_rank);
  return rank.empty() ? "worker" : absl::StrCat("worker ", rank);
}

// Serves the HTTP pages, if --http_port asks for them; null otherwise.
absl::StatusOr<std::unique_ptr<StatusServer>> ServePages(WorkerMetrics* metrics) {
  const std::string address = HttpAddress(absl::GetFlag(FLAGS_http_port), "127.0.0.1");
  if (address.empty()) return nullptr;
  SecurityOptions security = {{absl::GetFlag(FLAGS_tls_cert), absl::GetFlag(FLAGS_tls_key)},
                              absl::GetFlag(FLAGS_http_token_file),
                              absl::GetFlag(FLAGS_insecure)};
  if (security.token_file.empty()) security.token_file = absl::GetFlag(FLAGS_token_file);
  std::shared_ptr<const TokenTable> tokens;
  if (!security.token_file.empty()) {
    absl::StatusOr<TokenTable> loaded = TokenTable::Load(security.token_file);
    if (!loaded.ok()) return loaded.status();
    tokens = std::make_shared<const TokenTable>(*std::move(loaded));
  }
  absl::StatusOr<std::unique_ptr<StatusServer>> pages =
      StatusServer::Start(address, security, std::move(tokens),
                          {.metrics = [metrics] { return metrics->Text(); },
                           .flight = [] { return FlightDumpText(TakeFlightDump(FlightName(), "read over HTTP")); },
                           .ready = [metrics] { return metrics->Ready(); },
                           .job = [metrics] { return metrics->job(); }});
  if (!pages.ok()) return pages.status();
  const std::string file = absl::GetFlag(FLAGS_http_address_file);
  if (file.empty()) return pages;
  const absl::Status written = WriteFileAtomically(file, {(*pages)->address(), "\n"});
  if (!written.ok()) return absl::InvalidArgumentError(absl::StrCat("--http_address_file: ", written.message()));
  return pages;
}

int Run() {
  Interruption interruption;
  FlightRecorder::OfProcess().set_on(absl::GetFlag(FLAGS_flight_recorder));
  const std::string flight_dir = absl::GetFlag(FLAGS_flight_dir);
  std::optional<FlightDumper> flight;
  if (!flight_dir.empty()) flight.emplace(flight_dir, FlightName());
  SignalWatch signals([&](int, int count) { interruption.Signal(count); }, DumpAtQuit(flight_dir));
  absl::StatusOr<Worker::Options> options = ReadOptions();
  if (!options.ok()) return Fail(options.status(), 2);
  WorkerMetrics metrics;
  const absl::StatusOr<std::unique_ptr<StatusServer>> pages = ServePages(&metrics);
  if (!pages.ok()) return Fail(pages.status(), 2);
  // If there are no pages, nobody can read the metrics, so the worker does not measure them.
  if (*pages != nullptr) options->metrics = &metrics;
  absl::StatusOr<std::unique_ptr<Worker>> worker = Worker::Create(*std::move(options));
  if (!worker.ok()) return Fail(worker.status(), 2);
  interruption.Watch(worker->get());
  const absl::Status status = (*worker)->Run();
  interruption.Watch(nullptr);
  if (absl::IsCancelled(status)) return Fail(status, 130);
  if ((*worker)->failed_to_gather()) return Fail(status, kExitTemporary);
  if ((*worker)->lost_shard() && absl::GetFlag(FLAGS_run_by) == kOrchestrator) return Fail(status, kExitJobLost);
  // The other workers continue, and this one may rejoin after a restart.
  if (absl::IsUnavailable(status)) return Fail(status, 3);
  return status.ok() ? 0 : Fail(status, 1);
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  ballast::KeepFreedMemory();
  ballast::SkipLockOrderChecks();
  // gRPC's own lines would hide ours; GRPC_VERBOSITY brings them back.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && ballast::IsModelCommand(words[0])) {
    return ballast::RunModelCommand(words[0], absl::MakeConstSpan(words).subspan(1), std::cout, std::cerr);
  }
  if (!words.empty() && words[0] == "serve") {
    return ballast::RunServeCommand(absl::MakeConstSpan(words).subspan(1), std::cout, std::cerr);
  }
  const absl::Status parsed = ballast::ParseFlags(argc, argv, ballast::kUsage,
                                                  {"job",
                                                   "coordinator",
                                                   "tls_ca",
                                                   "tls_cert",
                                                   "tls_key",
                                                   "token_file",
                                                   "insecure",
                                                   "rank",
                                                   "device",
                                                   "gpus",
                                                   "autotune",
                                                   "cuda_graphs",
                                                   "threads",
                                                   "run_dir",
                                                   "continue_run",
                                                   "mode",
                                                   "steps_ahead",
                                                   "quorum",
                                                   "local_steps",
                                                   "codec",
                                                   "value_codec",
                                                   "precision",
                                                   "durability",
                                                   "shared_memory",
                                                   "data_streams",
                                                   "trace",
                                                   "trace_steps",
                                                   "gather_timeout",
                                                   "staleness",
                                                   "http_port",
                                                   "http_address_file",
                                                   "flight_dir",
                                                   "run_by",
                                                   "http_token_file",
                                                   "traceparent",
                                                   "flight_recorder"});
  if (!parsed.ok()) return ballast::Fail(parsed, 2);
  return ballast::Run();
}
