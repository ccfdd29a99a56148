// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr int64_t kMaxBatch = 1048576;

absl::Status CheckElements(const Parameter& parameter, size_t got, const char* what) {
  if (got == static_cast<size_t>(parameter.elements)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " of \"", parameter.name, "\": got ", got, " elements, want ", parameter.elements));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const v1::Model& config, int64_t features, uint64_t seed,
                                                     int64_t max_batch, Device* device) {
  if (max_batch < 1 || max_batch > kMaxBatch) {
    return absl::InvalidArgumentError(absl::StrCat("model: got a batch of ", max_batch, ", want 1 to ", kMaxBatch));
  }
  absl::StatusOr<LayerChain> chain = BuildLayerChain(config, features);
  if (!chain.ok()) return chain.status();
  std::unique_ptr<Model> model(new Model(*std::move(chain), seed, max_batch, device));
  if (absl::Status status = model->AllocateMemory(); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("model ", model->Describe(), " at batch ", max_batch, ": ", status.message()));
  }
  return model;
}

Model::Model(LayerChain chain, uint64_t seed, int64_t max_batch, Device* device)
    : chain_(std::move(chain)), seed_(seed), max_batch_(max_batch), device_(*device) {
  for (const std::unique_ptr<Layer>& layer : chain_.layers) {
    Stage stage;
    stage.layer = layer.get();
    stage.parameters.first = parameters_.size();
    for (Parameter& parameter : layer->Parameters()) parameters_.push_back(std::move(parameter));
    stage.parameters.count = parameters_.size() - stage.parameters.first;
    if (stage.parameters.count > 0) {
      stage.group = groups_.size();
      groups_.push_back(stage.parameters);
    }
    stages_.push_back(std::move(stage));
  }
}

absl::Status Model::AllocateMemory() {
  absl::Status status;
  const auto allocate = [&](int64_t elements) -> std::unique_ptr<Buffer> {
    if (!status.ok()) return nullptr;
    absl::StatusOr<std::unique_ptr<Buffer>> buffer = device_.Allocate(elements);
    if (buffer.ok()) return *std::move(buffer);
    status = buffer.status();
    return nullptr;
  };
  int64_t widest = 0;
  for (Stage& stage : stages_) {
    stage.output = allocate(max_batch_ * stage.layer->outputs());
    widest = std::max(widest, stage.layer->outputs());
  }
  for (const Parameter& parameter : parameters_) {
    ParameterMemory memory;
    memory.value = allocate(parameter.elements);
    memory.gradient = allocate(parameter.elements);
    memory_.push_back(std::move(memory));
  }
  features_ = allocate(max_batch_ * chain_.features);
  labels_ = allocate(max_batch_);
  totals_ = allocate(kLossTotals);
  for (std::unique_ptr<Buffer>& gradient : gradients_) gradient = allocate(max_batch_ * widest);
  return status;
}

absl::Status Model::SetParameter(size_t index, absl::Span<const float> values) {
  if (absl::Status status = CheckElements(parameters_[index], values.size(), "value"); !status.ok()) {
    return status;
  }
  return device_.Upload(values, *memory_[index].value, 0);
}

absl::Status Model::GetGradient(size_t index, absl::Span<float> values) {
  if (absl::Status status = CheckElements(parameters_[index], values.size(), "gradient"); !status.ok()) {
    return status;
  }
  return device_.Download(*memory_[index].gradient, 0, values);
}

absl::StatusOr<BatchResult> Model::Train(const BatchView& batch, StepHooks& hooks) {
  const Matrix gradient{gradients_[0].get(), batch.examples, stages_.back().layer->outputs()};
  absl::StatusOr<BatchResult> result = RunForward(batch, &hooks, &gradient);
  if (!result.ok()) return result.status();
  if (absl::Status status = hooks.AfterForward(*result); !status.ok()) return status;
  if (absl::Status status = RunBackward(batch, hooks, gradient); !status.ok()) return status;
  return result;
}

absl::StatusOr<BatchResult> Model::Evaluate(const BatchView& batch) { return RunForward(batch, nullptr, nullptr); }

absl::Status Model::CheckBatch(const BatchView& batch) const {
  if (batch.examples < 0 || batch.examples > max_batch_) {
    return absl::InvalidArgumentError(absl::StrCat("batch: got ", batch.examples, " examples, want 0 to ", max_batch_));
  }
  const size_t features = batch.examples * chain_.features;
  if (batch.features.size() != features) {
    return absl::InvalidArgumentError(absl::StrCat("batch of ", batch.examples, " examples: got ",
                                                   batch.features.size(), " features, want ", features));
  }
  if (batch.labels.size() != static_cast<size_t>(batch.examples)) {
    return absl::InvalidArgumentError(absl::StrCat("batch of ", batch.examples, " examples: got ", batch.labels.size(),
                                                   " labels, want ", batch.examples));
  }
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    if (absl::Status status = CheckLabel(batch.labels[i]); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("example ", i, " of the batch: its ", status.message()));
    }
  }
  return absl::OkStatus();
}

Pass Model::PassOf(size_t stage, const BatchView& batch, bool training) const {
  const ParameterGroup& own = stages_[stage].parameters;
  // An odd factor keeps different seeds different.
  const uint64_t seed = seed_ ^ (batch.seed * 0x9E3779B97F4A7C15u);
  return {device_, absl::MakeConstSpan(memory_).subspan(own.first, own.count), training,
          DropoutKey{seed, batch.step, static_cast<uint32_t>(stage)}};
}

Matrix Model::InputOf(size_t stage, int64_t examples) const {
  if (stage == 0) return {features_.get(), examples, chain_.features};
  const Stage& before = stages_[stage - 1];
  return {before.output.get(), examples, before.layer->outputs()};
}

absl::StatusOr<BatchResult> Model::RunForward(const BatchView& batch, StepHooks* hooks, const Matrix* gradient) {
  if (absl::Status status = CheckBatch(batch); !status.ok()) return status;
  if (absl::Status status = device_.Upload(batch.features, *features_, 0); !status.ok()) {
    return status;
  }
  if (absl::Status status = device_.Upload(batch.labels, *labels_, 0); !status.ok()) return status;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    if (hooks != nullptr && stage.parameters.count > 0) {
      if (absl::Status status = hooks->BeforeForward(stage.group); !status.ok()) return status;
    }
    stage.layer->Forward(PassOf(i, batch, hooks != nullptr), InputOf(i, batch.examples),
                         InputOf(i + 1, batch.examples));
  }
  device_.Loss(chain_.loss->function(), InputOf(stages_.size(), batch.examples), *labels_, *totals_, gradient);
  float totals[kLossTotals];
  if (absl::Status status = device_.Download(*totals_, 0, absl::MakeSpan(totals)); !status.ok()) {
    return status;
  }
  return BatchResult{totals[kLossSum], batch.examples, static_cast<int64_t>(totals[kCorrect])};
}

absl::Status Model::RunBackward(const BatchView& batch, StepHooks& hooks, Matrix dy) {
  // Below the first layer with parameters there is nothing to compute a gradient for.
  size_t first = 0;
  while (stages_[first].parameters.count == 0) ++first;
  for (size_t i = stages_.size(); i-- > first;) {
    const Stage& stage = stages_[i];
    const Matrix x = InputOf(i, batch.examples);
    Buffer* const other = gradients_[dy.buffer == gradients_[0].get() ? 1 : 0].get();
    const Matrix dx{other, x.rows, x.columns};
    stage.layer->Backward(PassOf(i, batch, true), x, dy, i == first ? nullptr : &dx);
    if (stage.parameters.count > 0) {
      if (absl::Status status = hooks.GradientReady(stage.group); !status.ok()) return status;
    }
    dy = dx;
  }
  return absl::OkStatus();
}

}  // namespace ballast
