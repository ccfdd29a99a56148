// SPDX-License-Identifier: Apache-2.0
#include "bench/step_contestants.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "bench/bench_report.h"
#include "bench/peers/child_server.h"
#include "cli/page/process_scraper.h"
#include "cli/page/run_watch.h"
#include "common/run/metrics.h"
#include "common/security/key_folder.h"
#include "common/storage/file.h"
#include "nlohmann/json.hpp"

namespace ballast {
namespace {

// Scrapes the processes of a job and asks them as the live page does, each second, on a thread of its own. Thread
// safety: all methods may be called from any thread.
class Observer {
 public:
  // `server`: its gRPC address. `folder`/logs has a file NAME.http with the HTTP address of each process.
  Observer(const std::string& server, const std::string& folder)
      : scraper_(folder, [](absl::string_view) { return true; }), watch_({.address = server}) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Observer() {
    end_.Notify();
    thread_.join();
  }

  // The most processes that answered in one round.
  size_t answered() const { return answered_; }

 private:
  void Run() {
    while (!end_.WaitForNotificationWithTimeout(absl::Seconds(1))) {
      const std::vector<ProcessScraper::Scrape> scrapes = scraper_.ScrapeAll(absl::Seconds(1));
      const auto well = std::count_if(scrapes.begin(), scrapes.end(), [](const auto& one) { return one.status.ok(); });
      answered_ = std::max<size_t>(answered_, well);
      watch_.Step();
    }
  }

  ProcessScraper scraper_;
  RunWatch watch_;
  absl::Notification end_;
  std::atomic<size_t> answered_{0};
  std::thread thread_;
};

// The text of bench/peers/torch_peer.py at build time, so that the program needs no other file.
constexpr char kTorchPeer[] =
#include "bench/peers/torch_peer_text.inc"
    ;

// The Python of the user's choice, or the system's, which Debian's PyTorch is for.
std::string Python() {
  const char* const own = std::getenv("BALLAST_PYTHON");
  return own != nullptr && *own != '\0' ? own : "/usr/bin/python3";
}
constexpr int kNoTorch = 3;
constexpr absl::Duration kPoll = absl::Milliseconds(50);
// Time for processes to start, read the data and make the first steps on a busy machine.
constexpr absl::Duration kStart = absl::Seconds(60);
constexpr double kWarmUpSeconds = 1.5;

constexpr char kJob[] = R"(name: "bench"
seed: 1
data {
  train { idx { images: "$0/train-images-idx3-ubyte.gz" labels: "$0/train-labels-idx1-ubyte.gz" } }
  normalization { mean: 72.94 stddev: 90.02 }
}
model {
  layers { dense { units: $1 } }
  layers { relu {} }
  layers { dense { units: $2 } }
  layers { relu {} }
  layers { dense { units: 10 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: 1000000 batch_size: $3 report_every_steps: $4 accumulate_batches: $5 }
optimizer { sgd { learning_rate: 0.05 } }
policy { $6 {} }
$7
)";

// Steps between two reports, which take a fraction of a second.
int ReportSteps(const StepTask& task) { return task.model == "large" ? 2 : 20; }
// Batches between two exchanges, and reports, of workers that are alone: enough that the exchange takes a few
// hundredths of the time.
int AloneBatches(const StepTask& task) { return task.model == "large" ? 5 : 25; }

// Samples of a step of all workers; 0 if they do not keep step, or have steps of different sizes: the end of an epoch,
// which only the small model reaches, also ends a step of several batches.
double StepSamples(const StepTask& task, const std::string& mode) {
  const bool alone = mode == "alone";
  if (mode == "async" || (alone && task.model != "large")) return 0;
  return kStepWorkers * kStepBatch * (alone ? AloneBatches(task) : 1);
}

std::string JobText(const StepTask& task, const BallastSetting& setting) {
  const std::string& codec = setting.codec;
  const auto [first, second] = HiddenUnits(task);
  const int steps = ReportSteps(task);
  const bool alone = setting.mode == "alone";
  const std::string encoding = absl::StrCat("ENCODING_", absl::AsciiStrToUpper(codec));
  return absl::Substitute(
      kJob, task.data_folder, first, second, kStepBatch, alone ? 1 : steps, alone ? AloneBatches(task) : 1,
      alone ? "sync" : setting.mode,
      codec == "fp32" ? "" : absl::StrCat("codec { gradients: ", encoding, " values: ", encoding, " }"));
}

// The run's second at which the warm-up ends; `lines` is not empty.
double WarmUpEnd(const std::vector<TrainMetrics>& lines) { return lines.front().seconds + kWarmUpSeconds; }

// The result between the first line after the warm-up and the last line; nothing if they are less than `seconds`
// apart. `step_samples`: samples of a step of all workers, which keep step; 0 if they do not. The lines' own count has
// what other workers have reported so far, which is off by a report.
std::optional<StepResult> Measure(const std::vector<TrainMetrics>& lines, double seconds, double step_samples) {
  if (lines.empty()) return std::nullopt;
  const double from = WarmUpEnd(lines);
  const auto first =
      std::find_if(lines.begin(), lines.end(), [&](const TrainMetrics& line) { return line.seconds >= from; });
  if (first == lines.end() || lines.back().seconds - first->seconds < seconds) return std::nullopt;
  StepResult result;
  const double samples = step_samples > 0 ? step_samples * static_cast<double>(lines.back().step - first->step)
                                          : static_cast<double>(lines.back().examples - first->examples);
  result.samples_per_second = samples / (lines.back().seconds - first->seconds);
  result.wait_share = 0;
  const double count = static_cast<double>(lines.end() - first - 1);
  for (auto line = first + 1; line != lines.end(); ++line) {
    result.wait_share += line->wait_share / count;
    result.bytes_sent += line->bytes_sent / count;
    result.bytes_received += line->bytes_received / count;
  }
  return result;
}

// Counts what the threads of a job's processes do. Thread safety: confined to one thread.
class ThreadWatch {
 public:
  ThreadWatch(const ChildServer& server, const std::vector<ChildProgram>& workers)
      : processes_{{"server", server.pid()}} {
    for (const ChildProgram& worker : workers) processes_.push_back({"worker", worker.pid()});
  }

  // Begins to count, at the first call.
  void Begin() {
    if (!began_.has_value()) began_ = Count();
  }

  // Sets what was done since Begin, unless the kernel does not count.
  void End(StepResult& result) const {
    const std::optional<Counted> now = Count();
    if (!began_.has_value() || !now.has_value()) return;
    result.threads_seconds = absl::ToDoubleSeconds(now->time - began_->time);
    for (const auto& [name, times] : now->table) {
      const auto earlier = began_->table.find(name);
      result.threads[name] = earlier == began_->table.end() ? times : times.Since(earlier->second);
    }
  }

 private:
  struct Counted {
    absl::Time time;
    ThreadTable table;
  };

  std::optional<Counted> Count() const {
    Counted counted = {absl::Now(), {}};
    for (const auto& [name, pid] : processes_) {
      if (!AddThreads(name, pid, counted.table).ok()) return std::nullopt;
    }
    return counted;
  }

  std::vector<std::pair<std::string, pid_t>> processes_;
  std::optional<Counted> began_;
};

// Watches both workers; the run is over as soon as the result is known.
absl::StatusOr<StepResult> Watch(std::vector<ChildProgram>& workers, const std::string& metrics, double seconds,
                                 double step_samples, ThreadWatch threads) {
  const absl::Time deadline = absl::Now() + kStart + absl::Seconds(4 * seconds);
  while (absl::Now() < deadline) {
    for (ChildProgram& worker : workers) {
      if (!worker.Hear(kPoll)) return absl::InternalError(absl::StrCat("a worker exited", worker.LastWords()));
    }
    const absl::StatusOr<Metrics> read = ReadMetrics(metrics);
    if (!read.ok() && !absl::IsNotFound(read.status())) return read.status();
    if (!read.ok()) continue;
    if (!read->train.empty() && read->train.back().seconds >= WarmUpEnd(read->train)) threads.Begin();
    std::optional<StepResult> result = Measure(read->train, seconds, step_samples);
    if (!result.has_value()) continue;
    threads.End(*result);
    return *std::move(result);
  }
  return absl::DeadlineExceededError(absl::StrCat("timed out after ",
                                                  absl::FormatDuration(kStart + absl::Seconds(4 * seconds)),
                                                  " waiting for the workers' metrics", workers[0].LastWords()));
}

}  // namespace

absl::StatusOr<StepResult> TrainWithBallast(const StepTask& task, const BallastSetting& setting) {
  const absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
  if (!folder.ok()) return folder.status();
  const std::string job = absl::StrCat(folder->path(), "/job.textproto");
  if (absl::Status status = WriteFileAtomically(job, {JobText(task, setting)}); !status.ok()) return status;
  const absl::StatusOr<std::string> binary = FindBinary("worker", OwnPath());
  if (!binary.ok()) return binary.status();
  std::vector<std::string> server_flags, worker_flags;
  const std::string pages = absl::StrCat(folder->path(), "/observed");
  if (setting.observed.has_value() && !*setting.observed) {
    server_flags = worker_flags = {"--noflight_recorder"};
  } else if (setting.observed.has_value()) {
    std::filesystem::create_directories(absl::StrCat(pages, "/logs"));
    server_flags = {"--http_port", "0", "--http_address_file", absl::StrCat(pages, "/logs/server-0.http")};
  }
  if (setting.tls) {
    const CertificateAuthority::Validity validity = {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(24)};
    const absl::StatusOr<KeyFolder> keys =
        KeyFolder::Make(absl::StrCat(folder->path(), "/security"), {"*", {"127.0.0.1"}, validity, validity});
    if (!keys.ok()) return keys.status();
    server_flags = keys->ServerFlags();
    worker_flags = keys->WorkerFlags();
  }
  const absl::StatusOr<std::vector<ChildServer>> servers = StartServers(1, kStepWorkers, *folder, server_flags);
  if (!servers.ok()) return servers.status();
  const std::string run = absl::StrCat(folder->path(), "/run");
  std::vector<ChildProgram> workers;
  for (int rank = 0; rank < kStepWorkers; ++rank) {
    std::vector<std::string> argv = {*binary, "--job",     job, "--coordinator", (*servers)[0].address(), "--device",
                                     "cpu",   "--threads", "1", "--rank",        absl::StrCat(rank)};
    argv.insert(argv.end(), worker_flags.begin(), worker_flags.end());
    if (!setting.shared_memory) argv.push_back("--noshared_memory");
    if (setting.observed == true) {
      argv.insert(argv.end(),
                  {"--http_port", "0", "--http_address_file", absl::StrCat(pages, "/logs/worker-", rank, ".http")});
    }
    if (rank == 0) argv.insert(argv.end(), {"--run_dir", run});
    absl::StatusOr<ChildProgram> worker = ChildProgram::Start(argv);
    if (!worker.ok()) return worker.status();
    workers.push_back(*std::move(worker));
  }
  std::optional<Observer> observer;
  if (setting.observed == true) observer.emplace((*servers)[0].address(), pages);
  absl::StatusOr<StepResult> result = Watch(workers, absl::StrCat(run, "/metrics.jsonl"), task.seconds,
                                            StepSamples(task, setting.mode), ThreadWatch((*servers)[0], workers));
  if (observer.has_value() && result.ok() && observer->answered() < 1 + kStepWorkers) {
    return absl::InternalError(
        absl::StrCat("only ", observer->answered(), " processes answered the scraper, want ", 1 + kStepWorkers));
  }
  return result;
}

absl::StatusOr<StepResult> TrainWithTorch(const StepTask& task, const std::string& method) {
  const absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
  if (!folder.ok()) return folder.status();
  const std::string script = absl::StrCat(folder->path(), "/torch_peer.py");
  if (absl::Status status = WriteFileAtomically(script, {kTorchPeer}); !status.ok()) return status;
  absl::StatusOr<ChildProgram> peer = ChildProgram::Start(
      {Python(), script, "--method", method, "--model", task.model, "--images",
       absl::StrCat(task.data_folder, "/train-images-idx3-ubyte.gz"), "--labels",
       absl::StrCat(task.data_folder, "/train-labels-idx1-ubyte.gz"), "--workers", absl::StrCat(kStepWorkers),
       "--batch", absl::StrCat(kStepBatch), "--seconds", absl::StrCat(task.seconds)});
  if (!peer.ok()) return absl::NotFoundError(peer.status().message());
  // The script's own deadline is earlier.
  const absl::StatusOr<ExitStatus> end = peer->HearToEnd(2 * kStart + absl::Seconds(60 + 4 * task.seconds));
  if (!end.ok()) return end.status();
  if (!end->signaled && end->number == kNoTorch)
    return absl::NotFoundError(absl::StrCat("no PyTorch", peer->LastWords()));
  if (!end->ok()) return absl::InternalError(absl::StrCat("torch_peer.py ", end->ToString(), peer->LastWords()));
  for (absl::string_view line : absl::StrSplit(peer->said(), '\n')) {
    const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    if (json.is_object() && json.contains("samples_per_second")) return StepResult{json["samples_per_second"]};
  }
  return absl::InternalError(absl::StrCat("torch_peer.py printed no result", peer->LastWords()));
}

}  // namespace ballast
