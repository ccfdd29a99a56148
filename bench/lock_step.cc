// SPDX-License-Identifier: Apache-2.0
#include "bench/lock_step.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "bench/peers/child_server.h"
#include "cli/command/command.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/device/device.h"
#include "worker/model/model.h"

namespace ballast {
namespace {

static_assert(kStepWorkers == 2, "two gradients are summed");
// Enough that a batch comes from memory, not from a cache.
constexpr int kBatches = 100;
// Time to start and to make the batches on a busy machine.
constexpr absl::Duration kStart = absl::Seconds(60);
constexpr absl::Duration kWarmUp = absl::Milliseconds(500);
// Small, since the labels are random.
constexpr float kRate = 1e-4f;

// Has two threads wait for each other, without sleep. Thread safety: two threads call Wait.
class Barrier {
 public:
  void Wait() {
    const uint64_t round = arrived_.fetch_add(1, std::memory_order_acq_rel) / kStepWorkers;
    while (arrived_.load(std::memory_order_acquire) / kStepWorkers == round) std::this_thread::yield();
  }

 private:
  std::atomic<uint64_t> arrived_{0};
};

// Has nothing to do while a batch is computed.
class NoHooks : public StepHooks {
 public:
  absl::Status BeforeForward(size_t) override { return absl::OkStatus(); }
  absl::Status AfterForward(const BatchResult&) override { return absl::OkStatus(); }
  absl::Status GradientReady(size_t) override { return absl::OkStatus(); }
};

v1::Model ModelOf(const StepTask& task) {
  v1::Model model;
  const auto [first, second] = HiddenUnits(task);
  for (const int units : {first, second}) {
    model.add_layers()->mutable_dense()->set_units(units);
    model.add_layers()->mutable_relu();
  }
  model.add_layers()->mutable_dense()->set_units(kStepClasses);
  model.mutable_loss()->mutable_softmax_cross_entropy();
  return model;
}

// weights -= rate * mean of the gradients, in both replicas. The arrays do not overlap.
void Apply(size_t count, const float* __restrict gradient, const float* __restrict other, float* __restrict weights,
           float* __restrict copy) {
  for (size_t i = 0; i < count; ++i) {
    weights[i] -= kRate / kStepWorkers * (gradient[i] + other[i]);
    copy[i] = weights[i];
  }
}

// Owns the replicas and their batches. Thread safety: two threads call Run, each with its own rank.
class LockStep {
 public:
  static absl::StatusOr<std::unique_ptr<LockStep>> Create(const StepTask& task) {
    auto all = std::make_unique<LockStep>();
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> pixel(-1, 2), weight(-0.05f, 0.05f);
    for (Replica& replica : all->replicas_) {
      replica.device = CreateCpuDevice(/*threads=*/1);
      absl::StatusOr<std::unique_ptr<Model>> model =
          Model::Create(ModelOf(task), kStepInputs, /*seed=*/1, kStepBatch, replica.device.get());
      if (!model.ok()) return model.status();
      replica.model = *std::move(model);
      for (size_t i = 0; i < replica.model->parameters().size(); ++i) {
        for (float& value : replica.model->HostParameter(i)) value = weight(random);
      }
      replica.features.resize(size_t{kBatches} * kStepBatch * kStepInputs);
      for (float& value : replica.features) value = pixel(random);
      replica.labels.resize(kBatches * kStepBatch);
      for (float& label : replica.labels) label = static_cast<float>(random() % kStepClasses);
    }
    return all;
  }

  // After the warm-up; all 0 if that was not over.
  struct Ran {
    double steps_per_second = 0;
    // Share of the time in which the thread waits for the other one or applies gradients.
    double outside_share = 0;
  };

  // Trains until the time is up for the thread with rank 0, or a step fails.
  absl::StatusOr<Ran> Run(int rank, absl::Duration duration) {
    NoHooks hooks;
    const absl::Time begin = absl::Now() + kWarmUp;
    std::optional<absl::Time> first;
    absl::Duration computed;
    for (int step = 0, counted = 0;; ++step) {
      const absl::Time before = absl::Now();
      const absl::Status status = replicas_[rank].model->Train(BatchOf(rank, step), hooks).status();
      const absl::Time now = absl::Now();
      if (!status.ok() || (rank == 0 && first.has_value() && now > *first + duration)) end_ = true;
      barrier_.Wait();
      // Nobody changes it between the two barriers, so both threads end after the same step.
      const bool end = end_;
      if (!end) Update(rank);
      barrier_.Wait();
      if (!status.ok()) return status;
      if (end && !first.has_value()) return Ran();
      if (first.has_value()) computed += now - before;
      if (end) {
        return Ran{counted / absl::ToDoubleSeconds(now - *first), 1 - absl::FDivDuration(computed, now - *first)};
      }
      if (first.has_value()) {
        ++counted;
      } else if (now >= begin) {
        first = now;
      }
    }
  }

 private:
  struct Replica {
    std::unique_ptr<Device> device;
    std::unique_ptr<Model> model;
    // [kBatches * kStepBatch, kStepInputs] and [kBatches * kStepBatch].
    std::vector<float> features, labels;
  };

  BatchView BatchOf(int rank, int step) const {
    const size_t first = static_cast<size_t>(step % kBatches) * kStepBatch;
    BatchView batch;
    batch.features =
        absl::MakeConstSpan(replicas_[rank].features).subspan(first * kStepInputs, kStepBatch * kStepInputs);
    batch.labels = absl::MakeConstSpan(replicas_[rank].labels).subspan(first, kStepBatch);
    batch.examples = kStepBatch;
    batch.step = step;
    return batch;
  }

  // Applies this rank's half of each parameter.
  void Update(int rank) {
    Model& one = *replicas_[0].model;
    Model& other = *replicas_[1].model;
    for (size_t i = 0; i < one.parameters().size(); ++i) {
      const size_t all = one.HostParameter(i).size();
      const size_t begin = rank * all / kStepWorkers, end = (rank + 1) * all / kStepWorkers;
      Apply(end - begin, one.HostGradient(i).data() + begin, other.HostGradient(i).data() + begin,
            one.HostParameter(i).data() + begin, other.HostParameter(i).data() + begin);
    }
  }

  std::array<Replica, kStepWorkers> replicas_;
  Barrier barrier_;
  std::atomic<bool> end_{false};
};

}  // namespace

absl::StatusOr<StepResult> TrainInLockStep(const StepTask& task) {
  absl::StatusOr<ChildProgram> child = ChildProgram::Start(
      {OwnPath(), absl::StrCat("--lock-step-", task.model), "--seconds", absl::StrCat(task.seconds)});
  if (!child.ok()) return child.status();
  const absl::StatusOr<ExitStatus> end = child->HearToEnd(kStart + absl::Seconds(4 * task.seconds));
  if (!end.ok()) return end.status();
  StepResult result;
  const std::vector<std::string> said = absl::StrSplit(absl::StripAsciiWhitespace(child->said()), ' ');
  if (!end->ok() || said.size() != 2 || !absl::SimpleAtod(said[0], &result.samples_per_second) ||
      !absl::SimpleAtod(said[1], &result.wait_share)) {
    return absl::InternalError(absl::StrCat("training in lock step ", end->ToString(), child->LastWords()));
  }
  return result;
}

absl::Status RunLockStep(const std::string& model, const std::string& seconds) {
  double duration = 0;
  if (!absl::SimpleAtod(seconds, &duration)) {
    return absl::InvalidArgumentError(absl::StrCat("--seconds: got \"", seconds, "\", want a number"));
  }
  const absl::StatusOr<std::unique_ptr<LockStep>> steps = LockStep::Create({model, "", duration});
  if (!steps.ok()) return steps.status();
  absl::StatusOr<LockStep::Ran> other;
  std::thread second([&] { other = (*steps)->Run(1, absl::Seconds(duration)); });
  const absl::StatusOr<LockStep::Ran> one = (*steps)->Run(0, absl::Seconds(duration));
  second.join();
  if (!one.ok() || !other.ok()) return one.ok() ? other.status() : one.status();
  std::cout << one->steps_per_second * kStepWorkers * kStepBatch << " "
            << (one->outside_share + other->outside_share) / kStepWorkers << std::endl;
  return absl::OkStatus();
}

}  // namespace ballast
