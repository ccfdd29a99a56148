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
  const int64_t free = device->Memory().free;
  const absl::Status status = model->AllocateMemory();
  const std::string what = absl::StrCat("model ", model->Describe(), " at batch ", max_batch);
  if (absl::IsResourceExhausted(status)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, " ", DescribeShortage(model->Needs(), max_batch, free), " (", status.message(), ")"));
  }
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
  return model;
}

Model::Model(LayerChain chain, uint64_t seed, int64_t max_batch, Device* device)
    : chain_(std::move(chain)),
      gradient_plan_(PlanGradients(chain_)),
      seed_(seed),
      max_batch_(max_batch),
      device_(*device) {
  for (const ChainNode& node : chain_.nodes) {
    Stage stage;
    stage.parameters.first = parameters_.size();
    if (node.layer != nullptr) {
      for (Parameter& parameter : node.layer->Parameters()) parameters_.push_back(std::move(parameter));
    }
    stage.parameters.count = parameters_.size() - stage.parameters.first;
    if (stage.parameters.count > 0) {
      stage.group = groups_.size();
      groups_.push_back(stage.parameters);
    }
    stages_.push_back(std::move(stage));
  }
  PlanValues();
}

void Model::PlanValues() {
  std::vector<int> uses(chain_.nodes.size() + 1);
  for (const ChainNode& node : chain_.nodes) {
    ++uses[node.input];
    if (node.layer == nullptr) ++uses[node.shortcut];
  }
  size_t places = 1;
  place_ = {0};
  for (size_t i = 0; i < chain_.nodes.size(); ++i) {
    const ChainNode& node = chain_.nodes[i];
    const LayerTraits traits = node.layer == nullptr ? LayerTraits{.in_place = true} : node.layer->traits();
    // The features are the caller's values for as long as the batch lasts.
    bool in_place = traits.in_place && uses[node.input] == 1 && node.input > 0;
    if (in_place) {
      const ChainNode& before = chain_.nodes[node.input - 1];
      // A layer that wrote over its input needs what it wrote for backward, and no sum in its place. Those that may
      // follow keep its signs, which is all that a ReLU asks, and a dropout asks nothing.
      in_place = node.layer != nullptr || before.layer == nullptr || !before.layer->traits().in_place;
      if (in_place && traits.activation.has_value() && before.layer != nullptr &&
          before.layer->traits().fuses_activation) {
        stages_[node.input - 1].activation = traits.activation;
        stages_[i].done_by_the_one_before = true;
      }
    }
    place_.push_back(in_place ? place_[node.input] : places++);
  }
}

MemoryNeeds Model::Needs() const {
  MemoryNeeds needs{.kept = kLossTotals, .per_example = 1};
  for (const Parameter& parameter : parameters_) {
    needs.weights += parameter.elements;
    needs.gradients += parameter.elements;
  }
  size_t places = 0;
  for (size_t value = 0; value < place_.size(); ++value) {
    if (place_[value] != places) continue;
    needs.per_example += ElementsOf(value);
    ++places;
  }
  for (const ChainNode& node : chain_.nodes) {
    if (node.layer == nullptr) continue;
    for (const LayerMemory& memory : node.layer->Memory()) needs.kept += memory.elements;
  }
  for (const int64_t elements : gradient_plan_.buffers) needs.per_example += elements;
  return needs;
}

MemoryBytes Model::Memory() const {
  MemoryBytes bytes = Needs().At(max_batch_);
  const DeviceMemory device = device_.Memory();
  bytes.workspace = device.workspace;
  bytes.staging = bytes.pinned = device.pinned;
  return bytes;
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
  for (size_t value = 0; value < place_.size(); ++value) {
    if (place_[value] == values_.size()) values_.push_back(allocate(max_batch_ * ElementsOf(value)));
  }
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (chain_.nodes[i].layer == nullptr) continue;
    for (const LayerMemory& memory : chain_.nodes[i].layer->Memory()) {
      stages_[i].memory.push_back(allocate(memory.elements));
      if (status.ok()) device_.Fill(memory.initial, {stages_[i].memory.back().get(), 1, memory.elements});
    }
  }
  for (const Parameter& parameter : parameters_) {
    ParameterMemory memory;
    memory.value = allocate(parameter.elements);
    memory.gradient = allocate(parameter.elements);
    memory_.push_back(std::move(memory));
  }
  labels_ = allocate(max_batch_);
  totals_ = allocate(kLossTotals);
  for (const int64_t elements : gradient_plan_.buffers) gradients_.push_back(allocate(max_batch_ * elements));
  return status;
}

absl::Status Model::SetParameter(size_t index, absl::Span<const float> values) {
  if (absl::Status status = CheckElements(parameters_[index], values.size(), "value"); !status.ok()) {
    return status;
  }
  const TimelineScope span(timeline_, TimelineRow::kCopies, "upload", parameters_[index].name,
                           values.size() * sizeof(float));
  return device_.Upload(values, *memory_[index].value, 0);
}

absl::Status Model::GetParameter(size_t index, absl::Span<float> values) {
  if (absl::Status status = CheckElements(parameters_[index], values.size(), "value"); !status.ok()) {
    return status;
  }
  return device_.Download(*memory_[index].value, 0, values);
}

absl::Status Model::GetGradient(size_t index, absl::Span<float> values) {
  if (absl::Status status = CheckElements(parameters_[index], values.size(), "gradient"); !status.ok()) {
    return status;
  }
  const TimelineScope span(timeline_, TimelineRow::kCopies, "download", parameters_[index].name,
                           values.size() * sizeof(float));
  return device_.Download(*memory_[index].gradient, 0, values);
}

absl::StatusOr<BatchResult> Model::Train(const BatchView& batch, StepHooks& hooks) {
  const Matrix gradient = GradientOf(chain_.nodes.size(), gradient_plan_.loss, batch.examples);
  absl::StatusOr<BatchResult> result = RunForward(batch, &hooks, &gradient);
  if (!result.ok()) return result.status();
  if (absl::Status status = hooks.AfterForward(*result); !status.ok()) return status;
  if (batch.loss_scale != 1) device_.Scale(batch.loss_scale, gradient);
  if (absl::Status status = RunBackward(batch, hooks); !status.ok()) return status;
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
  return {device_,  absl::MakeConstSpan(memory_).subspan(own.first, own.count), stages_[stage].memory,
          training, DropoutKey{seed, batch.step, static_cast<uint32_t>(stage)}, stages_[stage].activation};
}

int64_t Model::ElementsOf(size_t value) const { return value == 0 ? chain_.features : chain_.nodes[value - 1].outputs; }

Matrix Model::ValueOf(size_t value, int64_t examples) const {
  return {values_[place_[value]].get(), examples, ElementsOf(value)};
}

Matrix Model::GradientOf(size_t value, size_t buffer, int64_t examples) const {
  return {gradients_[buffer].get(), examples, ElementsOf(value)};
}

absl::Status Model::UploadBatch(const BatchView& batch) {
  const TimelineScope span(timeline_, TimelineRow::kCopies, "upload", "batch",
                           (batch.features.size() + batch.labels.size()) * sizeof(float));
  if (absl::Status status = device_.Upload(batch.features, *values_[0], 0); !status.ok()) return status;
  return device_.Upload(batch.labels, *labels_, 0);
}

absl::StatusOr<BatchResult> Model::RunForward(const BatchView& batch, StepHooks* hooks, const Matrix* gradient) {
  if (absl::Status status = CheckBatch(batch); !status.ok()) return status;
  if (absl::Status status = UploadBatch(batch); !status.ok()) return status;
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (hooks != nullptr && stages_[i].parameters.count > 0) {
      if (absl::Status status = hooks->BeforeForward(stages_[i].group); !status.ok()) return status;
    }
    RunForward(i, batch, hooks != nullptr);
  }
  {
    const TimelineScope span(timeline_, TimelineRow::kCompute, "loss");
    device_.Loss(chain_.loss->function(), ValueOf(stages_.size(), batch.examples), *labels_, *totals_, gradient);
  }
  float totals[kLossTotals];
  const TimelineScope span(timeline_, TimelineRow::kCopies, "download", "loss", sizeof(totals));
  if (absl::Status status = device_.Download(*totals_, 0, absl::MakeSpan(totals)); !status.ok()) {
    return status;
  }
  return BatchResult{totals[kLossSum], batch.examples, static_cast<int64_t>(totals[kCorrect])};
}

void Model::RunForward(size_t stage, const BatchView& batch, bool training) {
  if (stages_[stage].done_by_the_one_before) return;
  const ChainNode& node = chain_.nodes[stage];
  const TimelineScope span(timeline_, TimelineRow::kCompute, "forward", node.name);
  const Matrix x = ValueOf(node.input, batch.examples), y = ValueOf(stage + 1, batch.examples);
  if (node.layer == nullptr) {
    device_.Add(x, ValueOf(node.shortcut, batch.examples), y);
  } else {
    node.layer->Forward(PassOf(stage, batch, training), x, y);
  }
}

absl::Status Model::RunBackward(const BatchView& batch, StepHooks& hooks) {
  for (size_t i = stages_.size(); i-- > 0;) {
    RunBackward(i, batch);
    if (stages_[i].parameters.count > 0) {
      if (absl::Status status = hooks.GradientReady(stages_[i].group); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void Model::RunBackward(size_t stage, const BatchView& batch) {
  const ChainNode& node = chain_.nodes[stage];
  const GradientPlan::Step& step = gradient_plan_.steps[stage];
  if (!step.dy.has_value()) return;
  const TimelineScope span(timeline_, TimelineRow::kCompute, "backward", node.name);
  const Matrix dy = GradientOf(stage + 1, *step.dy, batch.examples);
  Matrix dx;
  if (step.dx.has_value()) dx = GradientOf(node.input, *step.dx, batch.examples);
  if (node.layer != nullptr) {
    node.layer->Backward(PassOf(stage, batch, true), ValueOf(node.input, batch.examples), dy,
                         step.dx.has_value() ? &dx : nullptr);
  }
  if (!step.other.has_value()) return;
  const Matrix other = GradientOf(node.input, *step.other, batch.examples);
  device_.Add(node.layer == nullptr ? dy : dx, other, dx);
}

}  // namespace ballast
