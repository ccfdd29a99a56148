// SPDX-License-Identifier: Apache-2.0
#include "bench/step_contestants.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "bench/peers/child_program.h"
#include "bench/peers/child_server.h"
#include "cli/command/binary_finder.h"
#include "common/run/metrics_reader.h"
#include "common/security/key_folder.h"
#include "common/storage/file.h"
#include "nlohmann/json.hpp"

namespace ballast {
namespace {

// The text of bench/peers/torch_peer.py at build time, so that the program needs no other file.
constexpr char kTorchPeer[] =
#include "bench/peers/torch_peer_text.inc"
    ;

constexpr char kPython[] = "/usr/bin/python3";
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
training { epochs: 1000000 batch_size: $3 report_every_steps: $4 }
optimizer { sgd { learning_rate: 0.05 } }
policy { $5 {} }
$6
)";

std::string JobText(const StepTask& task, const BallastSetting& setting) {
  const std::string& codec = setting.codec;
  const bool large = task.model == "large";
  const std::string encoding = absl::StrCat("ENCODING_", absl::AsciiStrToUpper(codec));
  return absl::Substitute(
      kJob, task.data_folder, large ? 4096 : 512, large ? 4096 : 256, kStepBatch, large ? 2 : 20, setting.mode,
      codec == "fp32" ? "" : absl::StrCat("codec { gradients: ", encoding, " values: ", encoding, " }"));
}

// The result between the first line after the warm-up and the last line; nothing if they are less than `seconds`
// apart.
std::optional<StepResult> Measure(const std::vector<TrainMetrics>& lines, double seconds) {
  if (lines.empty()) return std::nullopt;
  const double from = lines.front().seconds + kWarmUpSeconds;
  const auto first =
      std::find_if(lines.begin(), lines.end(), [&](const TrainMetrics& line) { return line.seconds >= from; });
  if (first == lines.end() || lines.back().seconds - first->seconds < seconds) return std::nullopt;
  StepResult result;
  result.samples_per_second =
      static_cast<double>(lines.back().examples - first->examples) / (lines.back().seconds - first->seconds);
  result.wait_share = 0;
  const double count = static_cast<double>(lines.end() - first - 1);
  for (auto line = first + 1; line != lines.end(); ++line) {
    result.wait_share += line->wait_share / count;
    result.bytes_sent += line->bytes_sent / count;
    result.bytes_received += line->bytes_received / count;
  }
  return result;
}

// Watches both workers; the run is over as soon as the result is known.
absl::StatusOr<StepResult> Watch(std::vector<ChildProgram>& workers, const std::string& metrics, double seconds) {
  const absl::Time deadline = absl::Now() + kStart + absl::Seconds(4 * seconds);
  while (absl::Now() < deadline) {
    for (ChildProgram& worker : workers) {
      if (!worker.Hear(kPoll)) return absl::InternalError(absl::StrCat("a worker exited", worker.LastWords()));
    }
    const absl::StatusOr<Metrics> read = ReadMetrics(metrics);
    if (!read.ok() && !absl::IsNotFound(read.status())) return read.status();
    if (!read.ok()) continue;
    if (std::optional<StepResult> result = Measure(read->train, seconds); result.has_value()) return *result;
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
    if (rank == 0) argv.insert(argv.end(), {"--run_dir", run});
    absl::StatusOr<ChildProgram> worker = ChildProgram::Start(argv);
    if (!worker.ok()) return worker.status();
    workers.push_back(*std::move(worker));
  }
  return Watch(workers, absl::StrCat(run, "/metrics.jsonl"), task.seconds);
}

absl::StatusOr<StepResult> TrainWithTorch(const StepTask& task, const std::string& method) {
  const absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
  if (!folder.ok()) return folder.status();
  const std::string script = absl::StrCat(folder->path(), "/torch_peer.py");
  if (absl::Status status = WriteFileAtomically(script, {kTorchPeer}); !status.ok()) return status;
  absl::StatusOr<ChildProgram> peer = ChildProgram::Start(
      {kPython, script, "--method", method, "--model", task.model, "--images",
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
