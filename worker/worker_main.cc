// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/job/job_file.h"
#include "common/job/job_overrides.h"
#include "common/program/env_flags.h"
#include "common/program/signal_watch.h"
#include "common/program/this_process.h"
#include "common/program/version.h"
#include "common/rpc/credentials.h"
#include "worker/device/cuda_options.h"
#include "worker/training/worker.h"

ABSL_FLAG(std::string, job, "", "The job file (examples/*.textproto). Required.");
ABSL_FLAG(std::string, coordinator, "127.0.0.1:7700", "HOST:PORT of server 0.");
ABSL_FLAG(std::string, tls_ca, "", "PEM file of the authorities that servers' certificates are from; turns TLS on.");
ABSL_FLAG(std::string, tls_cert, "", "PEM file of a certificate, for servers that ask for one.");
ABSL_FLAG(std::string, tls_key, "", "PEM file of its private key, which only this user may read.");
ABSL_FLAG(std::string, token_file, "", "File of the token that is shown to servers: worker, a job or *, the token.");
ABSL_FLAG(bool, insecure, false, "Speak to servers of other machines without TLS.");
ABSL_FLAG(std::string, rank, "", "Rank of this worker, or a pod's name that ends in it; the next free one if empty.");
ABSL_FLAG(std::string, device, "auto", "What to compute on: auto, cpu or cuda.");
ABSL_FLAG(std::string, gpus, "1", "With device cuda: over how many GPUs each batch is split, or all.");
ABSL_FLAG(bool, autotune, true,
          "On a GPU: try several algorithms when a shape is first seen and keep the fastest, also for the next run. "
          "Without it the libraries' own guesses are taken, and a run's bits are the next one's.");
ABSL_FLAG(bool, cuda_graphs, true, "On a GPU: keep what a model computes again and again as CUDA graphs.");
ABSL_FLAG(int, threads, 0, "Threads to compute with on the CPU; 0: as many as there are cores.");
ABSL_FLAG(std::string, run_dir, "", "Folder that worker 0 leaves the results in; runs/<job>-<time> if empty.");
ABSL_FLAG(std::string, mode, "",
          "sync, async, bounded or local_sgd, instead of what the job file says. This and the "
          "next five, precision and durability must be the same for all workers.");
ABSL_FLAG(std::string, staleness, "", "With mode bounded: how many steps a worker may be ahead.");
ABSL_FLAG(std::string, quorum, "", "With mode sync: how many workers' gradients a step waits for.");
ABSL_FLAG(std::string, local_steps, "",
          "With mode local_sgd: how many steps of its own a worker makes between pushes.");
ABSL_FLAG(std::string, codec, "",
          "How gradients travel: fp32, fp16, bf16, int8, top_k or sign; fp16 and bf16 values, too.");
ABSL_FLAG(std::string, value_codec, "", "How values travel: fp32, fp16, bf16 or int8.");
ABSL_FLAG(bool, shared_memory, true, "Exchange messages with servers of this machine through shared memory.");
ABSL_FLAG(std::string, durability, "", "What the job outlives: none, checkpoint, wal, wal_sync or replica.");
ABSL_FLAG(std::string, precision, "", "What to compute in: fp32, tf32, bf16 or fp16; the CPU has fp32 alone.");
ABSL_FLAG(std::string, trace, "",
          "File that a timeline is left in (JSON; open it with ui.perfetto.dev or chrome://tracing): compute, copies, "
          "push, pull, wait.");
ABSL_FLAG(std::string, trace_steps, "1-200", "With trace: the first and the last step that it shows, from 1.");
ABSL_FLAG(
    int, gather_timeout, 300,
    "Seconds from the start until all servers and workers have joined; then it ends with 75 and says who is missing.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "ballast_worker: computes gradients of a job's model and exchanges them with its servers.\n"
    "SIGTERM or SIGINT ends it after the step under way, with 130; worker 0 saves what there is. Twice: at once.\n"
    "It ends with 1 when the job has failed, with 2 for bad input, and with 3 when it lost what only it needs, its "
    "device\n"
    "or its connections: the job goes on, and it may be started again. It ends with 75 when others are missing for "
    "longer\n"
    "than --gather_timeout; it may be started again, too.\n\n"
    "  ballast_worker --job examples/fashion_mnist.textproto --coordinator 127.0.0.1:7700";

// A day: cluster schedulers let pods wait for long.
constexpr int kMostGatherSeconds = 86400;
// As EX_TEMPFAIL of sysexits.h.
constexpr int kExitTemporary = 75;

int Fail(const absl::Status& status, int code) {
  std::cerr << "error: " << status.message() << std::endl;
  return code;
}

// Where a signal goes: to the trainer, or before it trains to the process's end.
class Interruption {
 public:
  void Signal(int count) {
    absl::MutexLock lock(&mutex_);
    if (count == 1 && trainer_ != nullptr && trainer_->Interrupt()) return;
    std::cerr << "error: interrupted" << std::endl;
    _exit(130);
  }
  void Watch(Worker* trainer) {
    absl::MutexLock lock(&mutex_);
    trainer_ = trainer;
  }

 private:
  absl::Mutex mutex_;
  Worker* trainer_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

absl::StatusOr<Worker::Options> ReadOptions() {
  Worker::Options options;
  const std::string path = absl::GetFlag(FLAGS_job);
  if (path.empty()) return absl::InvalidArgumentError("--job is required; see --help");
  absl::StatusOr<v1::Job> job = LoadJob(path);
  if (!job.ok()) return job.status();
  job = Override(*std::move(job),
                 {.mode = absl::GetFlag(FLAGS_mode),
                  .staleness = absl::GetFlag(FLAGS_staleness),
                  .quorum = absl::GetFlag(FLAGS_quorum),
                  .local_steps = absl::GetFlag(FLAGS_local_steps),
                  .codec = absl::GetFlag(FLAGS_codec),
                  .value_codec = absl::GetFlag(FLAGS_value_codec),
                  .precision = absl::GetFlag(FLAGS_precision),
                  .durability = absl::GetFlag(FLAGS_durability)},
                 /*workers=*/0);
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
  options.threads = threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
  options.run_dir = absl::GetFlag(FLAGS_run_dir);
  options.shared_memory = absl::GetFlag(FLAGS_shared_memory);
  options.trace = absl::GetFlag(FLAGS_trace);
  absl::StatusOr<StepRange> steps = ParseStepRange(absl::GetFlag(FLAGS_trace_steps));
  if (!steps.ok()) return absl::InvalidArgumentError(absl::StrCat("--trace_steps: ", steps.status().message()));
  options.trace_steps = *steps;
  const int gather_timeout = absl::GetFlag(FLAGS_gather_timeout);
  if (gather_timeout < 1 || gather_timeout > kMostGatherSeconds) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gather_timeout: got ", gather_timeout, ", want 1 to ", kMostGatherSeconds));
  }
  options.gather_timeout = absl::Seconds(gather_timeout);
  return options;
}

int Run() {
  Interruption interruption;
  SignalWatch signals([&](int, int count) { interruption.Signal(count); });
  absl::StatusOr<Worker::Options> options = ReadOptions();
  if (!options.ok()) return Fail(options.status(), 2);
  absl::StatusOr<std::unique_ptr<Worker>> trainer = Worker::Create(*std::move(options));
  if (!trainer.ok()) return Fail(trainer.status(), 2);
  interruption.Watch(trainer->get());
  const absl::Status status = (*trainer)->Run();
  interruption.Watch(nullptr);
  if (absl::IsCancelled(status)) return Fail(status, 130);
  if ((*trainer)->failed_to_gather()) return Fail(status, kExitTemporary);
  // The others go on: started again, it may too.
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
  const absl::Status parsed = ballast::ParseFlags(
      argc, argv, ballast::kUsage,
      {"job",        "coordinator",   "tls_ca", "tls_cert",    "tls_key",       "token_file",  "insecure",
       "rank",       "device",        "gpus",   "autotune",    "cuda_graphs",   "threads",     "run_dir",
       "mode",       "staleness",     "quorum", "local_steps", "codec",         "value_codec", "precision",
       "durability", "shared_memory", "trace",  "trace_steps", "gather_timeout"});
  if (!parsed.ok()) return ballast::Fail(parsed, 2);
  return ballast::Run();
}
