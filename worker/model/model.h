// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
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
#include "worker/model/layers/parameter.h"
#include "worker/model/memory_needs.h"
#include "worker/model/trainable_model.h"
#include "worker/model/value_plan.h"

namespace ballast {

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
// Thread safety: TrainableModel's.
class Model : public TrainableModel {
 public:
  // INVALID_ARGUMENT where the layers do not fit each other or ask for a device that is not there, RESOURCE_EXHAUSTED
  // where a device has too little memory; the message says which batch would fit.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::Model& config, const ModelOptions& options);
  // On one device.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::Model& config, int64_t features, uint64_t seed,
                                                       int64_t max_batch, Device* device);

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<ParameterGroup>& parameter_groups() const override { return groups_; }
  std::string Describe() const override { return ballast::Describe(chain_); }
  MemoryBytes Memory() const override;
  bool waits_for_loss() const override { return waits_for_loss_; }
  bool classifies() const override { return chain_.loss->classifies(); }
  absl::Status CheckLabel(float label) const override { return chain_.loss->CheckLabel(label); }

  absl::Status SetParameter(size_t index, absl::Span<const float> values) override;
  absl::Status GetParameter(size_t index, absl::Span<float> values) override;
  absl::Status GetGradient(size_t index, absl::Span<float> values) override;
  absl::StatusOr<std::vector<Statistic>> Statistics() override;
  absl::Span<float> HostParameter(size_t index) override { return memory_[index].value->host(); }
  absl::Span<const float> HostGradient(size_t index) override { return memory_[index].gradient->host(); }
  std::optional<DeviceTensor> DeviceParameter(size_t index) override { return Place(index, *memory_[index].value); }
  DeviceTensor DeviceGradient(size_t index) override { return Place(index, *memory_[index].gradient); }

  void Record(TimelineRecorder* timeline) override { timeline_ = timeline; }

  absl::StatusOr<BatchResult> Train(const BatchView& batch, StepHooks& hooks) override;
  absl::StatusOr<double> LossSum() override;
  absl::StatusOr<BatchResult> Evaluate(const BatchView& batch) override;

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

  // Nodes of one device, [first, end), between two of a step's hooks: of them only the first may have parameters. A
  // copy to another device is alone.
  struct NodeSegment {
    size_t first = 0;
    size_t end = 0;
  };
  enum class PassKind { kTraining, kBackward, kEvaluation };

  Model(LayerChain chain, const ModelOptions& options);
  std::vector<NodeSegment> PlanNodeSegments() const;
  // Of each stage: the run that its backward computes again first.
  std::vector<std::optional<size_t>> PlanRecomputation() const;

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
  // Of a parameter or its gradient.
  DeviceTensor Place(size_t index, Buffer& buffer) const {
    return {options_.devices[parameter_devices_[index]], {&buffer, 1, parameters_[index].elements}};
  }
  Device& device(size_t index) const { return *options_.devices[index].device; }
  // The device's error with its name, where there are others.
  absl::Status Named(size_t index, const absl::Status& status) const;
  Matrix ValueOf(size_t value, int64_t examples) const;
  Matrix GradientOf(size_t value, size_t buffer, int64_t examples) const;
  absl::Status UploadBatch(const BatchView& batch);
  // Issues what a pass does in a nodes, by `issue` or as it was before.
  absl::Status Repeat(const NodeSegment& nodes, PassKind pass, const BatchView& batch,
                      absl::FunctionRef<absl::Status()> issue);
  // Whether the nodes's operations take the features or the labels.
  bool TakesBatch(const NodeSegment& nodes) const;
  absl::Status RunForward(size_t stage, const BatchView& batch, bool training, bool again = false);
  // Forward and loss. Where there are hooks, for training: with dropout, and the loss's gradient is left in `gradient`.
  absl::Status RunForward(const BatchView& batch, StepHooks* hooks, const LossGradient* gradient);
  // Of what RunForward computed last.
  absl::StatusOr<BatchResult> ReadLoss(int64_t examples);
  absl::Status RunBackward(const BatchView& batch, StepHooks& hooks);
  absl::Status RunBackward(size_t stage, const BatchView& batch);
  // Dropout's in a batch.
  uint64_t DropoutSeed(const BatchView& batch) const;

  const LayerChain chain_;
  const GradientPlan gradient_plan_;
  const ModelOptions options_;
  const ValuePlan value_plan_;
  const std::vector<NodeSegment> node_segments_;
  const std::vector<std::optional<size_t>> recomputed_;
  TimelineRecorder* timeline_ = nullptr;
  std::vector<Stage> stages_;
  std::vector<Parameter> parameters_;
  std::vector<ParameterGroup> groups_;
  std::vector<ParameterMemory> memory_;
  // Of each parameter: index of its device.
  std::vector<size_t> parameter_devices_;
  // As value_plan_ places them.
  std::vector<std::unique_ptr<Buffer>> values_;
  Transfer transfer_;
  std::unique_ptr<Buffer> labels_;
  std::unique_ptr<Buffer> totals_;
  bool waits_for_loss_ = true;
  // Where the device computes beside the host: a batch comes up into these while the last one is still computed from.
  std::unique_ptr<Buffer> next_features_;
  std::unique_ptr<Buffer> next_labels_;
  // Whether those have changed places an odd number of times.
  bool swapped_ = false;
  // As gradient_plan_ uses them.
  std::vector<std::unique_ptr<Buffer>> gradients_;
};

}  // namespace ballast
