// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/control/control_latency.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file_system.h"
#include "tests/fault/programs/program.h"
#include "tests/testing/tensors.h"

namespace ballast {
namespace {

// In the order of the enumeration.
constexpr const char* kPhaseNames[] = {"idle", "declaration", "push_load", "checkpoint", "resume", "stopped"};
constexpr uint32_t kPushers = 4;
constexpr uint64_t kPushedMib = 16;
constexpr uint64_t kElementsPerMib = (1 << 20) / sizeof(float);
// Longer than a member's timeout.
constexpr absl::Duration kStop = absl::Seconds(5);

v1::TensorSpec Spec(uint64_t mib) {
  v1::TensorSpec spec;
  spec.set_name("w");
  spec.add_shape(static_cast<int64_t>(mib));
  spec.add_shape(kElementsPerMib);
  spec.set_seed(1);
  spec.mutable_initializer()->mutable_he_normal();
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.001f);
  return spec;
}

// Waits in real time while the measurement continues.
void PauseFor(absl::Duration time) { absl::Notification().WaitForNotificationWithTimeout(time); }

class Measurement {
 public:
  explicit Measurement(const ControlOptions& options) : options_(options) {}

  absl::StatusOr<ControlReport> Run() {
    for (ControlPhase phase : options_.phases) {
      if (absl::Status status = RunPhase(phase); !status.ok()) {
        return absl::Status(status.code(), absl::StrCat(PhaseName(phase), ": ", status.message()));
      }
    }
    return std::move(report_);
  }

 private:
  // Starts a server with two probes, which are the workers of its job.
  absl::Status Begin(bool slow_disk, const std::string& resume) {
    v1::Durability durability;
    std::vector<std::string> flags = {"--workers", "2"};
    if (slow_disk) {
      durability.set_mode(v1::Durability::CHECKPOINT);
      durability.set_checkpoint_seconds(1);
      flags.insert(flags.end(), {"--checkpoint_dir", folder(), "--disk_mib_per_second",
                                 absl::StrCat(options_.disk_mib_per_second), "--disk_operation_ms", "50"});
    }
    if (!resume.empty()) flags.insert(flags.end(), {"--resume", resume});
    durability_ = durability;
    auto server =
        ServerProcess::Start(slow_disk ? options_.slow_disk_server : options_.server, "127.0.0.1", std::move(flags));
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    auto probe = ControlProbe::Start(server_->address(), durability);
    if (!probe.ok()) return probe.status();
    probe_ = *std::move(probe);
    return absl::OkStatus();
  }

  std::string folder() const { return absl::StrCat(options_.folder, "/checkpoints"); }

  // Connects and declares the tensor.
  absl::StatusOr<std::unique_ptr<Client>> Connect(uint32_t worker, uint64_t mib) const {
    ClientOptions client;
    // The coordinator places the tensors, and so knows the content of a checkpoint.
    client.coordinator = server_->address();
    client.job = "control";
    client.policy.mutable_async();
    client.workers = kPushers;
    client.durability = durability_;
    client.worker = worker;
    client.incarnation = absl::ToUnixMicros(absl::Now());
    client.shared_memory = false;
    client.rpc_timeout = absl::Seconds(300);
    client.wait_timeout = absl::Seconds(300);
    return Join(std::move(client), {Spec(mib)});
  }

  absl::Status Declare(uint32_t worker, uint64_t mib) const { return Connect(worker, mib).status(); }

  // Declares the tensor while the probes, as the job's workers, stay alive unmeasured.
  absl::Status Prepare(uint64_t mib) {
    probe_->Run();
    const absl::Status status = Declare(0, mib);
    probe_->Stop();
    return status;
  }

  // Measures control calls while `work` runs.
  absl::Status Measure(ControlPhase phase, absl::FunctionRef<absl::Status()> work) {
    probe_->Run();
    const absl::Time begun = absl::Now();
    const absl::Status status = work();
    const absl::Duration took = absl::Now() - begun;
    report_.phases.push_back({phase, took, probe_->Stop()});
    return status;
  }

  absl::Status RunPhase(ControlPhase phase) {
    const bool slow_disk = phase == ControlPhase::kCheckpoint || phase == ControlPhase::kResume;
    std::string resume;
    if (phase == ControlPhase::kResume) {
      const auto newest = CheckpointFolder(PosixFileSystem(), folder()).Newest();
      if (!newest.ok()) return newest.status();
      resume = newest->manifest_path;
    }
    if (absl::Status status = Begin(slow_disk, resume); !status.ok()) return status;
    if (absl::Status status = Work(phase); !status.ok()) return status;
    if (absl::Status status = CountLost(); !status.ok()) return status;
    probe_.reset();
    return server_->Kill();
  }

  absl::Status Work(ControlPhase phase) {
    switch (phase) {
      case ControlPhase::kIdle:
        return Measure(phase, [&] {
          PauseFor(options_.time);
          return absl::OkStatus();
        });
      case ControlPhase::kDeclaration:
        return Measure(phase, [&] { return DeclareTwice(options_.declared_mib); });
      case ControlPhase::kPushLoad:
        if (absl::Status status = Prepare(kPushedMib); !status.ok()) return status;
        return Measure(phase, [&] { return PushForAWhile(); });
      case ControlPhase::kCheckpoint:
        if (absl::Status status = Prepare(options_.saved_mib); !status.ok()) return status;
        return Measure(phase, [&] { return SaveForAWhile(); });
      case ControlPhase::kResume:
        return Measure(phase, [&] { return DeclareTwice(options_.saved_mib); });
      case ControlPhase::kStopped:
        return Measure(phase, [&] {
          server_->Signal(SIGSTOP);
          PauseFor(kStop);
          server_->Signal(SIGCONT);
          PauseFor(absl::Seconds(1));
          return absl::OkStatus();
        });
    }
    return absl::OkStatus();
  }

  absl::Status DeclareTwice(uint64_t mib) const {
    absl::Status other;
    std::thread second([&] { other = Declare(1, mib); });
    absl::Status status = Declare(0, mib);
    second.join();
    status.Update(other);
    return status;
  }

  absl::Status PushForAWhile() {
    std::atomic<uint64_t> pushes{0};
    std::vector<absl::Status> ends(kPushers);
    std::vector<std::thread> pushers;
    const absl::Time end = absl::Now() + options_.time;
    for (uint32_t rank = 0; rank < kPushers; ++rank) {
      pushers.emplace_back([&, rank] { ends[rank] = PushUntil(end, rank, pushes); });
    }
    for (std::thread& pusher : pushers) pusher.join();
    report_.pushes += pushes;
    for (const absl::Status& status : ends) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status PushUntil(absl::Time end, uint32_t rank, std::atomic<uint64_t>& pushes) const {
    absl::StatusOr<std::unique_ptr<Client>> client = Connect(rank, kPushedMib);
    if (!client.ok()) return client.status();
    const std::vector<float> gradient(kPushedMib * kElementsPerMib, 0.001f);
    std::vector<float> values(gradient.size());
    for (uint64_t step = 0; absl::Now() < end; ++step) {
      const auto done = (*client)->PushPull(step, 1, {{0, gradient}}, {{0, absl::MakeSpan(values)}}).Get();
      if (!done.ok()) return done.status();
      ++pushes;
    }
    return absl::OkStatus();
  }

  absl::Status SaveForAWhile() {
    const CheckpointFolder checkpoints(PosixFileSystem(), folder());
    const absl::Time end = absl::Now() + options_.time;
    // Takes at least one checkpoint, however slow the disk is.
    const absl::Time latest = end + absl::Minutes(2);
    while (absl::Now() < end || (report_.checkpoints == 0 && absl::Now() < latest)) {
      PauseFor(absl::Milliseconds(100));
      const auto newest = checkpoints.Newest();
      if (newest.ok()) report_.checkpoints = newest->id;
    }
    if (report_.checkpoints > 0) return absl::OkStatus();
    return absl::DeadlineExceededError("timed out waiting for the first checkpoint");
  }

  absl::Status CountLost() {
    const absl::StatusOr<uint64_t> lost = probe_->CountLost();
    if (lost.ok()) report_.workers_lost += *lost;
    return lost.status();
  }

  const ControlOptions options_;
  ControlReport report_;
  v1::Durability durability_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<ControlProbe> probe_;
};

}  // namespace

std::string PhaseName(ControlPhase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

bool ControlReport::good(absl::Duration most) const {
  return workers_lost == 0 && std::all_of(phases.begin(), phases.end(), [&](const Phase& phase) {
           const bool in_time =
               phase.phase == ControlPhase::kStopped || absl::Milliseconds(phase.latencies.Percentile(0.99)) <= most;
           return in_time && phase.latencies.failed() == 0 && phase.latencies.calls() > 0;
         });
}

nlohmann::ordered_json ControlReport::ToJson() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  uint64_t calls = 0, failed = 0;
  double worst = 0;
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const Phase& phase : phases) {
    calls += phase.latencies.calls();
    failed += phase.latencies.failed();
    if (phase.phase != ControlPhase::kStopped) worst = std::max(worst, phase.latencies.Percentile(0.99));
    nlohmann::ordered_json one = {{"seconds", std::round(absl::ToDoubleSeconds(phase.took) * 100) / 100}};
    if (phase.latencies.failed() > 0) one["failure"] = phase.latencies.failure().ToString();
    one["calls"] = phase.latencies.ToJson();
    all[PhaseName(phase.phase)] = std::move(one);
  }
  json["control_calls"] = calls;
  json["control_calls_failed"] = failed;
  json["control_ms_p99"] = std::round(worst * 100) / 100;
  json["pushes_during"] = pushes;
  json["checkpoints_taken"] = checkpoints;
  json["workers_lost_wrongly"] = workers_lost;
  json["phases"] = std::move(all);
  return json;
}

absl::StatusOr<ControlReport> MeasureControl(const ControlOptions& options) { return Measurement(options).Run(); }

}  // namespace ballast
