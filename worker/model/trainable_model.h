// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/metrics/memory_bytes.h"
#include "common/trace/timeline_recorder.h"
#include "worker/device/named_device.h"
#include "worker/model/layers/parameter.h"

namespace ballast {

// The parameters of one layer: `count` of them from `first` on.
struct ParameterGroup {
  size_t first = 0;
  size_t count = 0;
};

// Examples to compute one gradient or evaluation from. Does not own them.
struct BatchView {
  // [examples, features], row-major.
  absl::Span<const float> features;
  // A class or a value for each example.
  absl::Span<const float> labels;
  // 0 to max_batch. None: the loss and all gradients are 0.
  int64_t examples = 0;
  // Of dropout, with the model's seed: what tells this batch from the job's others.
  uint64_t step = 0;
  uint64_t seed = 0;
  // Gradients, not the loss, come out multiplied by this, for a precision in which small ones would vanish.
  float loss_scale = 1;
};

struct BatchResult {
  // Over the examples.
  double loss_sum = 0;
  int64_t examples = 0;
  // Examples classified right; 0 where TrainableModel::classifies() is false.
  int64_t correct = 0;

  // Of other examples.
  BatchResult& operator+=(const BatchResult& other) {
    loss_sum += other.loss_sum;
    examples += other.examples;
    correct += other.correct;
    return *this;
  }
};

// A tensor where one of a model's devices has it.
struct DeviceTensor {
  NamedDevice on;
  Matrix elements;
};

// What a model learns beside its parameters, by no gradient: a batch norm's running mean or variance.
struct Statistic {
  std::string name;
  std::vector<float> values;
};

// What a training loop does while a batch is computed. An error ends the batch and is returned from Train.
class StepHooks {
 public:
  virtual ~StepHooks() = default;

  // The layer of this group computes next: its parameters must be set when this returns. In forward order.
  virtual absl::Status BeforeForward(size_t group) = 0;
  // The loss is known: the time to refuse one that is not finite. No gradient is where
  // TrainableModel::waits_for_loss(); else all are, and whoever takes one before asks LossSum() itself.
  virtual absl::Status AfterForward(const BatchResult& result) = 0;
  // The group's gradients may be read, which may wait for the device, and are not written again before the next Train.
  // In backward order.
  virtual absl::Status GradientReady(size_t group) = 0;
};

// What a training loop trains: a model, wherever it computes. It has a dozen methods, for nothing of it could be had
// from one part alone. Thread safety: one call of Train or Evaluate at a time. Beside it other threads may set a
// group's parameters from its GradientReady until its next BeforeForward returns, and read its gradients from
// GradientReady until the next Train.
class TrainableModel {
 public:
  virtual ~TrainableModel() = default;

  // In forward order. Zeros until set.
  virtual const std::vector<Parameter>& parameters() const = 0;
  // One for each layer that has any, in forward order.
  virtual const std::vector<ParameterGroup>& parameter_groups() const = 0;
  // For logs: layers, loss and number of parameters.
  virtual std::string Describe() const = 0;
  // What it holds on its devices, and what these hold besides.
  virtual MemoryBytes Memory() const = 0;
  virtual bool classifies() const = 0;
  // Whether backward begins when the loss has been read. Not where a device computes beside the host: it would have
  // nothing to do meanwhile.
  virtual bool waits_for_loss() const = 0;
  // INVALID_ARGUMENT ("label is …, want …") for a label that the loss cannot take.
  virtual absl::Status CheckLabel(float label) const = 0;

  // Copy whole tensors. INVALID_ARGUMENT where the sizes differ.
  virtual absl::Status SetParameter(size_t index, absl::Span<const float> values) = 0;
  virtual absl::Status GetParameter(size_t index, absl::Span<float> values) = 0;
  virtual absl::Status GetGradient(size_t index, absl::Span<float> values) = 0;
  // As they are when nothing is computed.
  virtual absl::StatusOr<std::vector<Statistic>> Statistics() = 0;
  // The parameters' memory without a copy, under the same rules; empty where the host cannot address it, or it is in
  // several places.
  virtual absl::Span<float> HostParameter(size_t index) = 0;
  virtual absl::Span<const float> HostGradient(size_t index) = 0;
  // Where a device has it, for operations of the thread that trains, under the same rules; none where it is in several
  // places.
  virtual std::optional<DeviceTensor> DeviceParameter(size_t index) = 0;
  virtual DeviceTensor DeviceGradient(size_t index) = 0;

  // From now on the layers' passes and the copies to and from the device are noted there, as the host sees them; null:
  // nowhere. The timeline outlives the model.
  virtual void Record(TimelineRecorder* timeline) = 0;

  // Forward, loss and backward. Gradients are of the mean loss over the batch's examples. INVALID_ARGUMENT for a batch
  // that does not fit, before any hook is called.
  virtual absl::StatusOr<BatchResult> Train(const BatchView& batch, StepHooks& hooks) = 0;
  // BatchResult::loss_sum of the batch under way or the last one. From its first GradientReady until the next
  // BeforeForward of that group returns, by any thread; waits for the devices.
  virtual absl::StatusOr<double> LossSum() = 0;
  // Forward and loss without dropout.
  virtual absl::StatusOr<BatchResult> Evaluate(const BatchView& batch) = 0;
};

}  // namespace ballast
