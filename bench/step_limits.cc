// SPDX-License-Identifier: Apache-2.0
#include "bench/step_limits.h"

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "bench/peers/child_server.h"
#include "bench/peers/tcp_stream.h"
#include "cli/command/command.h"

namespace ballast {
namespace {

constexpr double kStepSamples = kStepWorkers * kStepBatch;

// Messages of a step carry each value twice for each worker: as a gradient, and as a new value.
uint64_t ExchangedBytes(const StepTask& task) { return 2 * kStepWorkers * ModelFloats(task) * sizeof(float); }

}  // namespace

absl::StatusOr<StepResult> StreamLikeAStep(const StepTask& task) {
  const absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
  if (!folder.ok()) return folder.status();
  const absl::StatusOr<ChildServer> sink = ChildServer::Start({OwnPath(), "--tcp-sink"}, *folder);
  if (!sink.ok()) return sink.status();
  const std::vector<float> gradient(ModelFloats(task), 1);
  const double before = CpuSecondsWith({&*sink, 1});
  const absl::StatusOr<TcpRound> round =
      SendTcpStream(sink->address(),
                    absl::string_view(reinterpret_cast<const char*>(gradient.data()), gradient.size() * sizeof(float)),
                    absl::Seconds(task.seconds));
  if (!round.ok()) return round.status();
  const double seconds = (CpuSecondsWith({&*sink, 1}) - before) / kStepWorkers;
  return StepResult{.samples_per_second =
                        kStepSamples * static_cast<double>(round->bytes) / (seconds * ExchangedBytes(task))};
}

double RateOfBoth(double samples_per_second, double other_samples_per_second) {
  return 1 / (1 / samples_per_second + 1 / other_samples_per_second);
}

}  // namespace ballast
