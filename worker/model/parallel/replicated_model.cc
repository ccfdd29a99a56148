// SPDX-License-Identifier: Apache-2.0
#include "worker/model/parallel/replicated_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/device/collective/reducer.h"
#include "worker/device/factory/cuda_device.h"

namespace ballast {
namespace {

using Layers = google::protobuf::RepeatedPtrField<v1::Layer>;

// Returns the first device that a layer, or a layer inside it, names; empty if none does.
std::string AskedDevice(const Layers& layers) {
  for (const v1::Layer& layer : layers) {
    if (!layer.device().empty()) return layer.device();
    std::string inside = AskedDevice(layer.residual().layers());
    if (inside.empty()) inside = AskedDevice(layer.residual().shortcut());
    if (!inside.empty()) return inside;
  }
  return "";
}

// Returns whether a layer, or a layer inside it, keeps statistics of its training batches.
bool KeepStatistics(const Layers& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const v1::Layer& layer) {
    return layer.has_batch_norm() || KeepStatistics(layer.residual().layers()) ||
           KeepStatistics(layer.residual().shortcut());
  });
}

// Returns `size` examples of a batch from `begin` on.
BatchView Examples(const BatchView& batch, int64_t begin, int64_t size) {
  const size_t features = batch.examples == 0 ? 0 : batch.features.size() / batch.examples;
  BatchView part = batch;
  part.features = batch.features.subspan(begin * features, size * features);
  part.labels = batch.labels.subspan(begin, size);
  part.examples = size;
  return part;
}

// Splits a whole into parts, of which the first `extra` have one element more.
struct Split {
  int64_t least = 0;
  int64_t extra = 0;

  Split(int64_t whole, int64_t parts) : least(whole / parts), extra(whole % parts) {}
  int64_t size(int64_t part) const { return least + (part < extra ? 1 : 0); }
  int64_t begin(int64_t part) const { return least * part + std::min(part, extra); }
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReplicatedModel>> ReplicatedModel::Create(const v1::Model& config,
                                                                         const ModelOptions& options) {
  if (const std::string device = AskedDevice(config.layers()); !device.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("model: a layer's device is \"", device,
                                                   "\", want none if batches are split over ", options.devices.size(),
                                                   " devices"));
  }
  if (config.tables_size() > 0) {
    return absl::InvalidArgumentError(absl::StrCat("model: got tables and batches split over ", options.devices.size(),
                                                   " devices, want one device for each worker of a model with tables"));
  }
  std::unique_ptr<ReplicatedModel> model(new ReplicatedModel(options));
  model->keeps_statistics_ = KeepStatistics(config.layers());
  model->largest_part_ = Split(options.max_batch, options.devices.size()).size(0);
  for (size_t i = 0; i < options.devices.size(); ++i) {
    ModelOptions own = options;
    own.max_batch = model->largest_part_;
    own.devices = {options.devices[i]};
    absl::StatusOr<std::unique_ptr<Model>> replica = Model::Create(config, own);
    if (!replica.ok()) return model->Named(i, replica.status());
    model->replicas_.push_back(*std::move(replica));
  }
  int64_t largest = 0;
  for (const Parameter& parameter : model->parameters()) largest = std::max(largest, parameter.elements);
  absl::StatusOr<std::unique_ptr<Reducer>> reducer = CreateCudaReducer(options.devices);
  if (!reducer.ok()) {
    model->why_no_nccl_ = std::string(reducer.status().message());
    model->reducer_bytes_ = largest * static_cast<int64_t>(sizeof(float));
    reducer = CreateHostReducer(options.devices, largest);
  }
  if (!reducer.ok()) return reducer.status();
  model->reducer_ = *std::move(reducer);
  for (size_t i = 1; i < options.devices.size(); ++i) model->threads_.push_back(std::make_unique<DeviceThread>());
  return model;
}

std::string ReplicatedModel::Describe() const {
  return absl::StrCat(replicas_[0]->Describe(), ", on each of ", replicas_.size(), " devices, gradients summed ",
                      reducer_->Describe(), why_no_nccl_.empty() ? "" : absl::StrCat(" (", why_no_nccl_, ")"));
}

MemoryBytes ReplicatedModel::Memory() const {
  MemoryBytes sum{.gradients = reducer_bytes_};
  for (const std::unique_ptr<Model>& replica : replicas_) sum += replica->Memory();
  return sum;
}

absl::Status ReplicatedModel::Named(size_t replica, const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("device ", options_.devices[replica].name, ": ", status.message()));
}

absl::Status ReplicatedModel::SetParameter(size_t index, absl::Span<const float> values) {
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (absl::Status status = replicas_[i]->SetParameter(index, values); !status.ok()) return Named(i, status);
  }
  return absl::OkStatus();
}

absl::Status ReplicatedModel::GetParameter(size_t index, absl::Span<float> values) {
  return Named(0, replicas_[0]->GetParameter(index, values));
}

absl::Status ReplicatedModel::GetGradient(size_t index, absl::Span<float> values) {
  return Named(0, replicas_[0]->GetGradient(index, values));
}

absl::Status ReplicatedModel::GetRowGradients(size_t table, absl::Span<float>) {
  return absl::InvalidArgumentError(absl::StrCat("table ", table, ": got a model split over devices, which has none"));
}

absl::StatusOr<std::vector<Statistic>> ReplicatedModel::Statistics() {
  absl::StatusOr<std::vector<Statistic>> statistics = replicas_[0]->Statistics();
  if (!statistics.ok()) return Named(0, statistics.status());
  return statistics;
}

absl::Status ReplicatedModel::SetStatistic(const std::string& name, absl::Span<const float> values) {
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (absl::Status status = replicas_[i]->SetStatistic(name, values); !status.ok()) return Named(i, status);
  }
  return absl::OkStatus();
}

void ReplicatedModel::Record(TimelineRecorder* timeline) {
  timeline_ = timeline;
  replicas_[0]->Record(timeline);
}

absl::Status ReplicatedModel::CheckBatch(const BatchView& batch) const {
  if (batch.examples < 0 || batch.examples > options_.max_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch: got ", batch.examples, " examples, want 0 to ", options_.max_batch));
  }
  const size_t features = batch.examples * options_.features;
  if (batch.features.size() != features || batch.labels.size() != static_cast<size_t>(batch.examples)) {
    return absl::InvalidArgumentError(absl::StrCat("batch of ", batch.examples, " examples: got ",
                                                   batch.features.size(), " features and ", batch.labels.size(),
                                                   " labels, want ", features, " and ", batch.examples));
  }
  for (int64_t i = 0; i < batch.examples; ++i) {
    if (absl::Status status = CheckLabel(batch.labels[i]); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("example ", i, " of the batch: its ", status.message()));
    }
  }
  return absl::OkStatus();
}

BatchView ReplicatedModel::PartOf(const BatchView& batch, size_t replica) const {
  const Split split(batch.examples, replicas_.size());
  const int64_t size = split.size(replica);
  BatchView part = Examples(batch, split.begin(replica), size);
  // Workers' seeds differ by less than 2^32, so no other worker has the same seed.
  part.seed = batch.seed + (uint64_t{replica} << 32);
  // Weights the part's mean loss, so that the sum over the parts is the mean over the batch.
  if (batch.examples > 0) part.loss_scale *= static_cast<float>(size) / static_cast<float>(batch.examples);
  return part;
}

void ReplicatedModel::RunAll(absl::FunctionRef<void(size_t)> task) {
  for (size_t i = 1; i < replicas_.size(); ++i) threads_[i - 1]->Start([&task, i] { task(i); });
  task(0);
  for (const std::unique_ptr<DeviceThread>& thread : threads_) thread->Wait();
}

absl::Status ReplicatedModel::SumGradients(size_t group) {
  const ParameterGroup& parameters = parameter_groups()[group];
  for (size_t p = parameters.first; p < parameters.first + parameters.count; ++p) {
    const TimelineScope span(timeline_, TimelineRow::kCopies, "sum", replicas_[0]->parameters()[p].name,
                             (replicas_.size() - 1) * replicas_[0]->parameters()[p].elements * sizeof(float));
    std::vector<Matrix> parts;
    for (const std::unique_ptr<Model>& replica : replicas_) parts.push_back(replica->DeviceGradient(p).elements);
    if (absl::Status status = reducer_->Sum(parts); !status.ok()) return status;
  }
  options_.devices[0].device->Mark();
  return absl::OkStatus();
}

absl::StatusOr<BatchResult> ReplicatedModel::Train(const BatchView& batch, StepHooks& hooks) {
  if (absl::Status status = CheckBatch(batch); !status.ok()) return status;
  ReplicaStep step(replicas_.size(), &hooks, [this](size_t group) { return SumGradients(group); });
  std::vector<BatchResult> results(replicas_.size());
  RunAll([&](size_t i) {
    const absl::StatusOr<BatchResult> result = replicas_[i]->Train(PartOf(batch, i), step.hooks(i));
    if (result.ok()) {
      results[i] = *result;
    } else {
      const bool own = step.status().ok();
      step.Fail(Named(i, result.status()));
      // The first replica may be waiting for this replica's part of a sum.
      if (i > 0 && own) reducer_->Abort();
    }
  });
  if (absl::Status status = step.status(); !status.ok()) return status;
  BatchResult sum;
  for (const BatchResult& result : results) sum += result;
  return sum;
}

absl::StatusOr<double> ReplicatedModel::LossSum() {
  double sum = 0;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const absl::StatusOr<double> part = replicas_[i]->LossSum();
    if (!part.ok()) return Named(i, part.status());
    sum += *part;
  }
  return sum;
}

absl::StatusOr<BatchResult> ReplicatedModel::Evaluate(const BatchView& batch, absl::Span<float> outputs) {
  if (absl::Status status = CheckBatch(batch); !status.ok()) return status;
  if (!outputs.empty() && outputs.size() != static_cast<size_t>(batch.examples * this->outputs())) {
    return absl::InvalidArgumentError(absl::StrCat("evaluation of ", batch.examples, " examples: got memory for ",
                                                   outputs.size(), " outputs, want ",
                                                   batch.examples * this->outputs()));
  }
  if (keeps_statistics_) return EvaluateAlone(batch, outputs);
  std::vector<absl::StatusOr<BatchResult>> results(replicas_.size(), BatchResult());
  const Split split(batch.examples, replicas_.size());
  RunAll([&](size_t i) {
    absl::Span<float> part = outputs;
    if (!outputs.empty()) part = outputs.subspan(split.begin(i) * this->outputs(), split.size(i) * this->outputs());
    results[i] = replicas_[i]->Evaluate(PartOf(batch, i), part);
  });
  BatchResult sum;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].ok()) return Named(i, results[i].status());
    sum += *results[i];
  }
  return sum;
}

absl::StatusOr<BatchResult> ReplicatedModel::EvaluateAlone(const BatchView& batch, absl::Span<float> outputs) {
  BatchResult sum;
  for (int64_t begin = 0; begin < batch.examples; begin += largest_part_) {
    const int64_t size = std::min(largest_part_, batch.examples - begin);
    absl::Span<float> part = outputs;
    if (!outputs.empty()) part = outputs.subspan(begin * this->outputs(), size * this->outputs());
    const absl::StatusOr<BatchResult> result = replicas_[0]->Evaluate(Examples(batch, begin, size), part);
    if (!result.ok()) return Named(0, result.status());
    sum += *result;
  }
  return sum;
}

}  // namespace ballast
