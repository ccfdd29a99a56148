// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "common/trace/timeline_recorder.h"
#include "worker/device/device.h"
#include "worker/device/named_device.h"
#include "worker/device/transfer.h"
#include "worker/model/gradient_plan.h"
#include "worker/model/layer_chain.h"
#include "worker/model/memory_needs.h"
#include "worker/model/parameter.h"
#include "worker/model/value_plan.h"

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
  // Examples classified right; 0 where Model::classifies() is false.
  int64_t correct = 0;
};

// What a training loop does while a batch is computed. An error ends the batch and is returned from Train.
class StepHooks {
 public:
  virtual ~StepHooks() = default;

  // The layer of this group computes next: its parameters must be set when this returns. In forward order.
  virtual absl::Status BeforeForward(size_t group) = 0;
  // The loss is known, no gradient yet: the time to refuse one that is not finite.
  virtual absl::Status AfterForward(const BatchResult& result) = 0;
  // The group's gradients may be read, and are not written again before the next Train. In backward order.
  virtual absl::Status GradientReady(size_t group) = 0;
};

struct ModelOptions {
  int64_t features = 0;
  // Of dropout.
  uint64_t seed = 0;
  // 1 to 1048576.
  int64_t max_batch = 0;
  // v1.Training's.
  bool recompute = false;
  // At least one; what a layer may ask for, the first of those that ask for none. They outlive the model.
  std::vector<NamedDevice> devices;
};

// A chain of layers with the device memory that it needs for a batch: weights, gradients, activations, and what layers
// keep. It knows nothing of servers, optimizers or files.
// Thread safety: one call of Train or Evaluate at a time. Beside it other threads may set a group's parameters from its
// GradientReady until its next BeforeForward returns, and read its gradients from GradientReady until the next Train.
class Model {
 public:
  // INVALID_ARGUMENT where the layers do not fit each other or ask for a device that is not there, RESOURCE_EXHAUSTED
  // where a device has too little memory; the message says which batch would fit.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::Model& config, const ModelOptions& options);
  // On one device.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::Model& config, int64_t features, uint64_t seed,
                                                       int64_t max_batch, Device* device);

  // In forward order. Zeros until set.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // One for each layer that has any, in forward order.
  const std::vector<ParameterGroup>& parameter_groups() const { return groups_; }
  // For logs: layers, loss and number of parameters.
  std::string Describe() const { return ballast::Describe(chain_); }
  // What it holds on its device, and what the device holds besides.
  MemoryBytes Memory() const;
  bool classifies() const { return chain_.loss->classifies(); }
  // INVALID_ARGUMENT ("label is …, want …") for a label that the loss cannot take.
  absl::Status CheckLabel(float label) const { return chain_.loss->CheckLabel(label); }

  // Copy whole tensors. INVALID_ARGUMENT where the sizes differ.
  absl::Status SetParameter(size_t index, absl::Span<const float> values);
  absl::Status GetParameter(size_t index, absl::Span<float> values);
  absl::Status GetGradient(size_t index, absl::Span<float> values);
  // The same memory without a copy, under the same rules; empty where the host cannot address it.
  absl::Span<float> HostParameter(size_t index) { return memory_[index].value->host(); }
  absl::Span<const float> HostGradient(size_t index) { return memory_[index].gradient->host(); }

  // From now on the layers' passes and the copies to and from the device are noted there, as the host sees them; null:
  // nowhere. The timeline outlives the model.
  void Record(TimelineRecorder* timeline) { timeline_ = timeline; }

  // Forward, loss and backward. Gradients are of the mean loss over the batch's examples. INVALID_ARGUMENT for a batch
  // that does not fit, before any hook is called.
  absl::StatusOr<BatchResult> Train(const BatchView& batch, StepHooks& hooks);
  // Forward and loss without dropout.
  absl::StatusOr<BatchResult> Evaluate(const BatchView& batch);

 private:
  // What the model holds beside a node of the chain.
  struct Stage {
    ParameterGroup parameters;
    // Index of `parameters` in groups_, where there are any.
    size_t group = 0;
    // The layer's Memory().
    std::vector<std::unique_ptr<Buffer>> memory;
    // Of dropout: its position among the layers, wherever they are computed.
    uint32_t layer = 0;
  };

  Model(LayerChain chain, const ModelOptions& options);

  // What AllocateMemory allocates on a device; as if values were where `plan` says.
  MemoryNeeds Needs(size_t device, const ValuePlan& plan) const;
  absl::Status AllocateMemory();
  // Why there was too little, and what would fit.
  absl::Status Shortage(size_t device, int64_t free, const absl::Status& status) const;
  absl::Status CheckBatch(const BatchView& batch) const;
  Pass PassOf(size_t stage, const BatchView& batch, bool training) const;
  // Of a value of the chain.
  int64_t ElementsOf(size_t value) const;
  size_t DeviceOf(size_t value) const;
  Device& device(size_t index) const { return *options_.devices[index].device; }
  // The device's error with its name, where there are others.
  absl::Status Named(size_t index, const absl::Status& status) const;
  Matrix ValueOf(size_t value, int64_t examples) const;
  Matrix GradientOf(size_t value, size_t buffer, int64_t examples) const;
  absl::Status UploadBatch(const BatchView& batch);
  absl::Status RunForward(size_t stage, const BatchView& batch, bool training, bool again = false);
  // Forward and loss. Where there are hooks, for training: with dropout, and the loss's gradient is left in `gradient`.
  absl::StatusOr<BatchResult> RunForward(const BatchView& batch, StepHooks* hooks, const Matrix* gradient);
  absl::Status RunBackward(const BatchView& batch, StepHooks& hooks);
  absl::Status RunBackward(size_t stage, const BatchView& batch);
  // Makes a value be where the plan says, for backward.
  absl::Status Recompute(size_t value, const BatchView& batch);

  const LayerChain chain_;
  const GradientPlan gradient_plan_;
  const ModelOptions options_;
  const ValuePlan value_plan_;
  TimelineRecorder* timeline_ = nullptr;
  std::vector<Stage> stages_;
  std::vector<Parameter> parameters_;
  std::vector<ParameterGroup> groups_;
  std::vector<ParameterMemory> memory_;
  // Of each parameter: index of its device.
  std::vector<size_t> parameter_devices_;
  // As value_plan_ places them.
  std::vector<std::unique_ptr<Buffer>> values_;
  // Of each device: the run that was computed there last.
  std::vector<std::optional<size_t>> last_run_;
  Transfer transfer_;
  std::unique_ptr<Buffer> labels_;
  std::unique_ptr<Buffer> totals_;
  // As gradient_plan_ uses them.
  std::vector<std::unique_ptr<Buffer>> gradients_;
};

}  // namespace ballast
