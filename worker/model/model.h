// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "common/trace/timeline_recorder.h"
#include "worker/device/device.h"
#include "worker/device/named_device.h"
#include "worker/device/transfer.h"
#include "worker/model/buffer_plans.h"
#include "worker/model/layer_chain.h"
#include "worker/model/layers/layer.h"
#include "worker/model/model_buffers.h"
#include "worker/model/trainable_model.h"

namespace ballast {

struct ModelOptions {
  int64_t features = 0;
  // Names of the data's fields of ids.
  std::vector<std::string> id_fields = {};
  // Seed for dropout.
  uint64_t seed = 0;
  // 1 to 1048576.
  int64_t max_batch = 0;
  // v1.Training.recompute.
  bool recompute = false;
  // Names of layers whose parameters are not trained: they belong to no parameter group.
  std::vector<std::string> freeze;
  // At least one device; the first one computes layers that name no device. They must outlive the model.
  std::vector<NamedDevice> devices;
};

// Owns a chain of layers with its device memory, and issues its passes to the devices. It knows nothing of servers,
// optimizers or files. Thread safety: same as TrainableModel. Size: a pass over the layers, forward and backward, needs
// all of its state, and each part of the interface is a few lines over that pass.
class Model : public TrainableModel {
 public:
  // INVALID_ARGUMENT if the layers do not fit each other or name an unknown device. RESOURCE_EXHAUSTED if a device has
  // too little memory; the message names a batch size that would fit.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::Model& config, const ModelOptions& options);
  // Same, on one device.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::Model& config, int64_t features, uint64_t seed,
                                                       int64_t max_batch, Device* device);

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<ParameterGroup>& parameter_groups() const override { return groups_; }
  const std::vector<TableUse>& tables() const override { return chain_.tables; }
  std::string Describe() const override { return ballast::Describe(chain_); }
  MemoryBytes Memory() const override { return buffers_->Memory(); }
  bool waits_for_loss() const override { return buffers_->waits_for_loss(); }
  bool classifies() const override { return chain_.loss->classifies(); }
  bool predicts_probability() const override { return chain_.loss->function() == LossFunction::kSigmoidCrossEntropy; }
  int64_t outputs() const override { return chain_.ElementsOf(chain_.nodes.size()); }
  absl::Status CheckLabel(float label) const override { return chain_.loss->CheckLabel(label); }

  absl::Status SetParameter(size_t index, absl::Span<const float> values) override;
  absl::Status GetParameter(size_t index, absl::Span<float> values) override;
  absl::Status GetGradient(size_t index, absl::Span<float> values) override;
  absl::Status GetRowGradients(size_t table, absl::Span<float> values) override;
  absl::StatusOr<std::vector<Statistic>> Statistics() override;
  absl::Status SetStatistic(const std::string& name, absl::Span<const float> values) override;
  absl::Span<float> HostParameter(size_t index) override { return MemoryOf(index).value->host(); }
  absl::Span<const float> HostGradient(size_t index) override { return MemoryOf(index).gradient->host(); }
  std::optional<DeviceTensor> DeviceParameter(size_t index) override { return Place(index, *MemoryOf(index).value); }
  DeviceTensor DeviceGradient(size_t index) override { return Place(index, *MemoryOf(index).gradient); }

  bool DeferGradients(bool may) override { return defers_gradients_ = may && waits_for_loss(); }
  void ComputeGradient(size_t index, size_t begin, size_t end) override ABSL_LOCKS_EXCLUDED(deferred_mutex_);

  void Record(TimelineRecorder* timeline) override;

  absl::StatusOr<BatchResult> Train(const BatchView& batch, StepHooks& hooks) override;
  absl::StatusOr<double> LossSum() override;
  using TrainableModel::Evaluate;
  absl::StatusOr<BatchResult> Evaluate(const BatchView& batch, absl::Span<float> outputs) override;

 private:
  // A statistic in the memory of a layer.
  struct PlacedStatistic {
    std::string name;
    size_t device = 0;
    Buffer* values = nullptr;
  };
  std::vector<PlacedStatistic> PlacedStatistics() const;

  // State of the model for one node of the chain.
  struct Stage {
    ParameterGroup parameters;
    // Index of `parameters` in groups_, if they are trained.
    std::optional<size_t> group;
    // Position among the layers, which seeds dropout and does not depend on devices.
    uint32_t layer = 0;
  };

  // Nodes [first, end) of one device between two of a step's hooks, so that only the first node may train. A
  // copy to another device has its own segment.
  struct NodeSegment {
    size_t first = 0;
    size_t end = 0;
  };
  enum class PassKind { kTraining, kBackward, kEvaluation };

  Model(LayerChain chain, const ModelOptions& options);
  std::vector<NodeSegment> PlanNodeSegments() const;
  // Returns the run that each stage's backward recomputes first.
  std::vector<std::optional<size_t>> PlanRecomputation() const;

  absl::Status CheckBatch(const BatchView& batch) const;
  Pass PassOf(size_t stage, const BatchView& batch, bool training) const;
  const ParameterMemory& MemoryOf(size_t index) const { return buffers_->parameters()[index]; }
  // `buffer` is a parameter or its gradient.
  DeviceTensor Place(size_t index, Buffer& buffer) const {
    return {options_.devices[parameter_devices_[index]], {&buffer, 1, parameters_[index].elements}};
  }
  Device& device(size_t index) const { return *options_.devices[index].device; }
  absl::Status Named(size_t index, const absl::Status& status) const {
    return ballast::Named(options_.devices, index, status);
  }
  absl::Status UploadBatch(const BatchView& batch);
  // Makes the batch's rows of each table the current ones.
  absl::Status UploadRows(const BatchView& batch);
  absl::Status CheckRows(const BatchView& batch) const;
  // Issues the operations of a pass over a segment, by calling `issue` or by replaying what it issued before.
  absl::Status Repeat(const NodeSegment& nodes, PassKind pass, const BatchView& batch,
                      absl::FunctionRef<absl::Status()> issue);
  // Returns whether the segment's operations read the features or the labels.
  bool TakesBatch(const NodeSegment& nodes) const;
  absl::Status RunForward(size_t stage, const BatchView& batch, bool training, bool again = false,
                          ArrivingRows* arriving = nullptr);
  // Returns whether the stage's layer can compute with the rows of its weights that have come.
  bool TakesArrivingRows(size_t stage) const;
  // Runs forward and loss. Hooks select training: with dropout, and with the loss's gradient written to `gradient`.
  absl::Status RunForward(const BatchView& batch, StepHooks* hooks, const LossGradient* gradient);
  // Reads the loss that RunForward computed last.
  absl::StatusOr<BatchResult> ReadLoss(int64_t examples);
  // A gradient of which rows may be missing, during its GradientReady. Without `rows` none is.
  struct DeferredGradient {
    size_t parameter = 0;
    std::string layer;
    std::unique_ptr<RowsOfProduct> rows;
  };
  struct ReadyGradient {
    size_t group = 0;
    DeferredGradient deferred;
  };
  absl::Status RunBackward(const BatchView& batch, StepHooks& hooks);
  // Calls GradientReady, and then computes what is missing.
  absl::Status Announce(ReadyGradient ready, StepHooks& hooks) ABSL_LOCKS_EXCLUDED(deferred_mutex_);
  // `later`: see Pass.
  absl::Status RunBackward(size_t stage, const BatchView& batch, std::unique_ptr<RowsOfProduct>* later);
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
  // Device index of each parameter.
  std::vector<size_t> parameter_devices_;
  // Set by Create.
  std::unique_ptr<ModelBuffers> buffers_;
  // Indexed by table; for the current batch.
  std::vector<RowMemory> rows_;
  Transfer transfer_;

  bool defers_gradients_ = false;
  absl::Mutex deferred_mutex_;
  DeferredGradient deferred_ ABSL_GUARDED_BY(deferred_mutex_);
};

}  // namespace ballast
