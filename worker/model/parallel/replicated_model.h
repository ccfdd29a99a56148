// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/collective/reducer.h"
#include "worker/model/model.h"
#include "worker/model/parallel/device_thread.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// The same model on each of several devices, which share each batch: the first ones get one example more where it does
// not divide. Gradients are summed on the first device, weighted so that they are those of the mean loss over the
// batch. To whoever trains it, it is one model; all replicas have the same weights. What a layer knows of its batch is
// of its replica's part: batch norm normalises that, dropout draws another mask for each. Evaluation is shared
// likewise; of a model with batch norm it is the first replica's alone, with its running statistics. Thread safety:
// TrainableModel's.
class ReplicatedModel : public TrainableModel {
 public:
  // On each of options.devices; the replicas split up options.max_batch. INVALID_ARGUMENT where a layer asks for a
  // device, else as Model::Create.
  static absl::StatusOr<std::unique_ptr<ReplicatedModel>> Create(const v1::Model& config, const ModelOptions& options);

  const std::vector<Parameter>& parameters() const override { return replicas_[0]->parameters(); }
  const std::vector<ParameterGroup>& parameter_groups() const override { return replicas_[0]->parameter_groups(); }
  std::string Describe() const override;
  MemoryBytes Memory() const override;
  bool classifies() const override { return replicas_[0]->classifies(); }
  bool waits_for_loss() const override { return replicas_[0]->waits_for_loss(); }
  absl::Status CheckLabel(float label) const override { return replicas_[0]->CheckLabel(label); }

  absl::Status SetParameter(size_t index, absl::Span<const float> values) override;
  absl::Status GetParameter(size_t index, absl::Span<float> values) override;
  absl::Status GetGradient(size_t index, absl::Span<float> values) override;
  // The first replica's, which evaluates.
  absl::StatusOr<std::vector<Statistic>> Statistics() override;
  // Empty: what is set must reach all.
  absl::Span<float> HostParameter(size_t) override { return {}; }
  absl::Span<const float> HostGradient(size_t index) override { return replicas_[0]->HostGradient(index); }
  // None, for the same reason.
  std::optional<DeviceTensor> DeviceParameter(size_t) override { return std::nullopt; }
  DeviceTensor DeviceGradient(size_t index) override { return replicas_[0]->DeviceGradient(index); }

  // The first replica's passes, and the sums.
  void Record(TimelineRecorder* timeline) override;

  absl::StatusOr<BatchResult> Train(const BatchView& batch, StepHooks& hooks) override;
  absl::StatusOr<double> LossSum() override;
  absl::StatusOr<BatchResult> Evaluate(const BatchView& batch) override;

 private:
  explicit ReplicatedModel(ModelOptions options) : options_(std::move(options)) {}

  absl::Status CheckBatch(const BatchView& batch) const;
  // The examples of a batch that a replica gets.
  BatchView PartOf(const BatchView& batch, size_t replica) const;
  absl::Status SumGradients(size_t group);
  // By the first replica.
  absl::StatusOr<BatchResult> EvaluateAlone(const BatchView& batch);
  // The device's error with its name.
  absl::Status Named(size_t replica, const absl::Status& status) const;

  const ModelOptions options_;
  std::vector<std::unique_ptr<Model>> replicas_;
  // Whether each replica has statistics of its own parts.
  bool keeps_statistics_ = false;
  // Largest batch of one replica.
  int64_t largest_part_ = 0;
  // Of the sums, on the first device.
  int64_t reducer_bytes_ = 0;
  std::unique_ptr<Reducer> reducer_;
  // Why the sums are not NCCL's; empty: they are.
  std::string why_no_nccl_;
  TimelineRecorder* timeline_ = nullptr;
  // Of all replicas but the first, whose operations the caller's thread issues.
  std::vector<std::unique_ptr<DeviceThread>> threads_;
};

}  // namespace ballast
