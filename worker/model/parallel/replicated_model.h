// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/collective/reducer.h"
#include "worker/model/model.h"
#include "worker/model/parallel/replica_step.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Owns a replica of the same model on each of several devices, which share each batch: the first replicas get one more
// example if the batch does not divide evenly. Gradients are summed on the first device, weighted so that they are
// those of the mean loss over the batch. The training loop sees one model; all replicas have the same parameters.
// Layers see only their replica's part of the batch: batch norm normalizes that part, and dropout draws a different
// mask for each. Evaluation is shared in the same way, except for models with batch norm, which only the first replica
// evaluates, with its running statistics. Thread safety: same as TrainableModel.
class ReplicatedModel : public TrainableModel {
 public:
  // Creates a replica on each of options.devices; they split options.max_batch. INVALID_ARGUMENT if a layer names a
  // device or the model has tables; otherwise same errors as Model::Create.
  static absl::StatusOr<std::unique_ptr<ReplicatedModel>> Create(const v1::Model& config, const ModelOptions& options);

  const std::vector<Parameter>& parameters() const override { return replicas_[0]->parameters(); }
  const std::vector<ParameterGroup>& parameter_groups() const override { return replicas_[0]->parameter_groups(); }
  // Empty, because Create refuses tables.
  const std::vector<TableUse>& tables() const override { return replicas_[0]->tables(); }
  std::string Describe() const override;
  MemoryBytes Memory() const override;
  bool classifies() const override { return replicas_[0]->classifies(); }
  bool predicts_probability() const override { return replicas_[0]->predicts_probability(); }
  bool waits_for_loss() const override { return replicas_[0]->waits_for_loss(); }
  int64_t outputs() const override { return replicas_[0]->outputs(); }
  absl::Status CheckLabel(float label) const override { return replicas_[0]->CheckLabel(label); }

  absl::Status SetParameter(size_t index, absl::Span<const float> values) override;
  absl::Status GetParameter(size_t index, absl::Span<float> values) override;
  absl::Status GetGradient(size_t index, absl::Span<float> values) override;
  absl::Status GetRowGradients(size_t table, absl::Span<float> values) override;
  // Returns those of the first replica, because it evaluates.
  absl::StatusOr<std::vector<Statistic>> Statistics() override;
  absl::Status SetStatistic(const std::string& name, absl::Span<const float> values) override;
  // Empty, because a new value must reach all replicas.
  absl::Span<float> HostParameter(size_t) override { return {}; }
  absl::Span<const float> HostGradient(size_t index) override { return replicas_[0]->HostGradient(index); }
  // nullopt, for the same reason.
  std::optional<DeviceTensor> DeviceParameter(size_t) override { return std::nullopt; }
  DeviceTensor DeviceGradient(size_t index) override { return replicas_[0]->DeviceGradient(index); }

  // Records the first replica's passes, and the sums.
  void Record(TimelineRecorder* timeline) override;

  absl::StatusOr<BatchResult> Train(const BatchView& batch, StepHooks& hooks) override;
  absl::StatusOr<double> LossSum() override;
  using TrainableModel::Evaluate;
  absl::StatusOr<BatchResult> Evaluate(const BatchView& batch, absl::Span<float> outputs) override;

 private:
  explicit ReplicatedModel(ModelOptions options) : options_(std::move(options)) {}

  absl::Status CheckBatch(const BatchView& batch) const;
  // Returns the examples of a batch that a replica computes.
  BatchView PartOf(const BatchView& batch, size_t replica) const;
  // Calls `task` with each replica's index on its thread, and waits for all.
  void RunAll(absl::FunctionRef<void(size_t)> task);
  absl::Status SumGradients(size_t group);
  // Evaluates on the first replica.
  absl::StatusOr<BatchResult> EvaluateAlone(const BatchView& batch, absl::Span<float> outputs);
  // Adds the device's name to its error.
  absl::Status Named(size_t replica, const absl::Status& status) const;

  const ModelOptions options_;
  std::vector<std::unique_ptr<Model>> replicas_;
  // True if each replica keeps statistics of its own parts.
  bool keeps_statistics_ = false;
  // Largest batch of one replica.
  int64_t largest_part_ = 0;
  // Memory for the sums on the first device.
  int64_t reducer_bytes_ = 0;
  std::unique_ptr<Reducer> reducer_;
  // The reason why NCCL does not compute the sums; empty if it does.
  std::string why_no_nccl_;
  TimelineRecorder* timeline_ = nullptr;
  // One thread for each replica except the first, whose operations the caller's thread issues.
  std::vector<std::unique_ptr<DeviceThread>> threads_;
};

}  // namespace ballast
