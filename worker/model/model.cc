// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

constexpr int64_t kMaxBatch = 1048576;

absl::Status CheckElements(const Parameter& parameter, size_t got, const char* what) {
  if (got == static_cast<size_t>(parameter.elements)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " of \"", parameter.name, "\": got ", got, " elements, want ", parameter.elements));
}

std::vector<std::string> Names(const std::vector<NamedDevice>& devices) {
  std::vector<std::string> names;
  for (const NamedDevice& device : devices) names.push_back(device.name);
  return names;
}

// INVALID_ARGUMENT if a layer that computes in host memory is on a device without it.
absl::Status CheckHostLayers(const LayerChain& chain, const std::vector<NamedDevice>& devices) {
  for (const ChainNode& node : chain.nodes) {
    if (node.layer == nullptr || !node.layer->traits().on_host) continue;
    const NamedDevice& on = devices[node.device];
    const absl::StatusOr<std::unique_ptr<Buffer>> probe = on.device->Allocate(1);
    if (!probe.ok()) return probe.status();
    if (!(*probe)->host().empty()) continue;
    return LayerError(node.name, "computes on the CPU alone, got device ", on.device->Describe(),
                      ", want device: \"cpu\" in this layer");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const v1::Model& config, int64_t features, uint64_t seed,
                                                     int64_t max_batch, Device* device) {
  return Create(config, {.features = features, .seed = seed, .max_batch = max_batch, .devices = {{"cpu", device}}});
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const v1::Model& config, const ModelOptions& options) {
  if (options.max_batch < 1 || options.max_batch > kMaxBatch) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: got a batch of ", options.max_batch, ", want 1 to ", kMaxBatch));
  }
  absl::StatusOr<LayerChain> chain =
      BuildLayerChain(config, options.features,
                      {.id_fields = options.id_fields, .devices = Names(options.devices), .freeze = options.freeze});
  if (!chain.ok()) return chain.status();
  if (absl::Status status = CheckHostLayers(*chain, options.devices); !status.ok()) return status;
  std::unique_ptr<Model> model(new Model(*std::move(chain), options));
  absl::StatusOr<std::unique_ptr<ModelBuffers>> buffers = ModelBuffers::Allocate(
      {model->chain_, model->value_plan_, model->gradient_plan_, model->options_.devices, options.max_batch});
  if (!buffers.ok()) {
    const absl::Status& status = buffers.status();
    return absl::Status(status.code(), absl::StrCat("model ", model->Describe(), " at batch ", options.max_batch,
                                                    absl::IsResourceExhausted(status) ? " " : ": ", status.message()));
  }
  model->buffers_ = *std::move(buffers);
  return model;
}

Model::Model(LayerChain chain, const ModelOptions& options)
    : chain_(std::move(chain)),
      gradient_plan_(PlanGradients(chain_)),
      options_(options),
      value_plan_(PlanValues(chain_, options.recompute)),
      node_segments_(PlanNodeSegments()),
      recomputed_(PlanRecomputation()) {
  uint32_t layers = 0;
  for (const ChainNode& node : chain_.nodes) {
    Stage stage{.layer = layers};
    if (!node.carries) ++layers;
    stage.parameters.first = parameters_.size();
    if (node.layer != nullptr) {
      for (Parameter& parameter : node.layer->Parameters()) parameters_.push_back(std::move(parameter));
    }
    stage.parameters.count = parameters_.size() - stage.parameters.first;
    parameter_devices_.resize(parameters_.size(), node.device);
    if (node.trains()) {
      stage.group = groups_.size();
      groups_.push_back(stage.parameters);
    }
    stages_.push_back(std::move(stage));
  }
}

std::vector<Model::NodeSegment> Model::PlanNodeSegments() const {
  std::vector<NodeSegment> segments;
  bool carried = true;
  for (size_t i = 0; i < chain_.nodes.size(); ++i) {
    const ChainNode& node = chain_.nodes[i];
    // A layer with a table is issued for each batch anew, because each has another number of rows.
    const bool anew = node.carries || node.table.has_value();
    if (carried || anew || node.trains() || node.device != chain_.nodes[i - 1].device) segments.push_back({i, i});
    segments.back().end = i + 1;
    carried = anew;
  }
  return segments;
}

std::vector<std::optional<size_t>> Model::PlanRecomputation() const {
  std::vector<std::optional<size_t>> again(chain_.nodes.size());
  // The run that was computed last on each device.
  std::vector<std::optional<size_t>> last(options_.devices.size());
  for (size_t i = 0; i < chain_.nodes.size(); ++i) {
    if (value_plan_.steps[i].run.has_value()) last[chain_.nodes[i].device] = value_plan_.steps[i].run;
  }
  for (size_t i = chain_.nodes.size(); i-- > 0;) {
    const ChainNode& node = chain_.nodes[i];
    if (node.layer == nullptr || !gradient_plan_.steps[i].dy.has_value() || node.input == 0) continue;
    const std::optional<size_t> run = value_plan_.steps[node.input - 1].run;
    std::optional<size_t>& there = last[chain_.DeviceOf(node.input)];
    if (run.has_value() && run != there) again[i] = there = run;
  }
  return again;
}

absl::Status Model::SetParameter(size_t index, absl::Span<const float> values) {
  if (absl::Status status = CheckElements(parameters_[index], values.size(), "value"); !status.ok()) return status;
  const TimelineScope span(timeline_, TimelineRow::kCopies, "upload", parameters_[index].name,
                           values.size() * sizeof(float));
  const size_t on = parameter_devices_[index];
  return Named(on, device(on).Upload(values, *MemoryOf(index).value, 0));
}

absl::Status Model::GetParameter(size_t index, absl::Span<float> values) {
  if (absl::Status status = CheckElements(parameters_[index], values.size(), "value"); !status.ok()) return status;
  const size_t on = parameter_devices_[index];
  return Named(on, device(on).Download(*MemoryOf(index).value, 0, values));
}

absl::Status Model::GetGradient(size_t index, absl::Span<float> values) {
  if (absl::Status status = CheckElements(parameters_[index], values.size(), "gradient"); !status.ok()) return status;
  const TimelineScope span(timeline_, TimelineRow::kCopies, "download", parameters_[index].name,
                           values.size() * sizeof(float));
  const size_t on = parameter_devices_[index];
  return Named(on, device(on).Download(*MemoryOf(index).gradient, 0, values));
}

absl::Status Model::GetRowGradients(size_t table, absl::Span<float> values) {
  const Matrix gradient = rows_[table].gradient;
  if (static_cast<int64_t>(values.size()) != gradient.elements()) {
    return absl::InvalidArgumentError(absl::StrCat("gradient of rows of table ", table, ": got memory for ",
                                                   values.size(), " elements, want ", gradient.elements()));
  }
  if (values.empty()) return absl::OkStatus();
  const TimelineScope span(timeline_, TimelineRow::kCopies, "download", "rows", values.size() * sizeof(float));
  const size_t on = buffers_->DeviceOfTable(table);
  return Named(on, device(on).Download(*gradient.buffer, 0, values));
}

std::vector<Model::PlacedStatistic> Model::PlacedStatistics() const {
  std::vector<PlacedStatistic> placed;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const ChainNode& node = chain_.nodes[i];
    if (node.layer == nullptr) continue;
    const std::vector<LayerMemory> layout = node.layer->Memory();
    for (size_t m = 0; m < layout.size(); ++m) {
      if (!layout[m].name.empty()) placed.push_back({layout[m].name, node.device, buffers_->MemoryOf(i)[m].get()});
    }
  }
  return placed;
}

absl::StatusOr<std::vector<Statistic>> Model::Statistics() {
  std::vector<Statistic> statistics;
  for (const PlacedStatistic& placed : PlacedStatistics()) {
    Statistic statistic{placed.name, std::vector<float>(placed.values->size())};
    absl::Status status = device(placed.device).Download(*placed.values, 0, absl::MakeSpan(statistic.values));
    if (!status.ok()) return Named(placed.device, status);
    statistics.push_back(std::move(statistic));
  }
  return statistics;
}

absl::Status Model::SetStatistic(const std::string& name, absl::Span<const float> values) {
  for (const PlacedStatistic& placed : PlacedStatistics()) {
    if (placed.name != name) continue;
    if (values.size() != static_cast<size_t>(placed.values->size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("statistic \"", name, "\": got ", values.size(), " elements, want ", placed.values->size()));
    }
    return Named(placed.device, device(placed.device).Upload(values, *placed.values, 0));
  }
  return absl::NotFoundError(absl::StrCat("statistic \"", name, "\": no layer has it"));
}

void Model::Record(TimelineRecorder* timeline) {
  timeline_ = timeline;
  for (const NamedDevice& each : options_.devices) each.device->Record(timeline);
}

absl::StatusOr<BatchResult> Model::Train(const BatchView& batch, StepHooks& hooks) {
  const LossGradient gradient{buffers_->GradientOf(chain_.nodes.size(), gradient_plan_.loss, batch.examples),
                              batch.loss_scale};
  if (absl::Status status = RunForward(batch, &hooks, &gradient); !status.ok()) return status;
  Device& last = device(chain_.DeviceOf(chain_.nodes.size()));
  absl::StatusOr<BatchResult> result;
  const auto end_forward = [&]() -> absl::Status {
    result = ReadLoss(batch.examples);
    return result.ok() ? hooks.AfterForward(*result) : result.status();
  };
  if (waits_for_loss()) {
    if (absl::Status status = end_forward(); !status.ok()) return status;
  } else {
    last.Mark();
  }
  if (absl::Status status = RunBackward(batch, hooks); !status.ok()) return status;
  if (!waits_for_loss()) {
    if (absl::Status status = end_forward(); !status.ok()) return status;
  }
  return result;
}

absl::StatusOr<double> Model::LossSum() {
  const absl::StatusOr<BatchResult> result = ReadLoss(0);
  if (!result.ok()) return result.status();
  return result->loss_sum;
}

absl::StatusOr<BatchResult> Model::Evaluate(const BatchView& batch, absl::Span<float> outputs) {
  if (!outputs.empty() && outputs.size() != static_cast<size_t>(batch.examples * this->outputs())) {
    return absl::InvalidArgumentError(absl::StrCat("evaluation of ", batch.examples, " examples: got memory for ",
                                                   outputs.size(), " outputs, want ",
                                                   batch.examples * this->outputs()));
  }
  if (absl::Status status = RunForward(batch, nullptr, nullptr); !status.ok()) return status;
  const absl::StatusOr<BatchResult> result = ReadLoss(batch.examples);
  if (!result.ok() || outputs.empty()) return result;
  const size_t last = chain_.DeviceOf(stages_.size());
  const Buffer& values = *buffers_->ValueOf(stages_.size(), batch.examples).buffer;
  if (absl::Status status = device(last).Download(values, 0, outputs); !status.ok()) return Named(last, status);
  return result;
}

absl::Status Model::CheckBatch(const BatchView& batch) const {
  if (batch.examples < 0 || batch.examples > options_.max_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch: got ", batch.examples, " examples, want 0 to ", options_.max_batch));
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
  return CheckRows(batch);
}

absl::Status Model::CheckRows(const BatchView& batch) const {
  if (batch.tables.size() != chain_.tables.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch: got rows of ", batch.tables.size(), " tables, want ", chain_.tables.size()));
  }
  for (size_t t = 0; t < chain_.tables.size(); ++t) {
    const TableUse& use = chain_.tables[t];
    const RowsView& rows = batch.tables[t];
    const size_t bags = batch.examples * use.fields.size();
    const size_t places = rows.ends.empty() ? 0 : rows.ends.back();
    if (rows.ends.size() != bags || rows.places.size() != places || rows.values.size() % use.dim != 0) {
      return absl::InvalidArgumentError(absl::StrCat("batch: got ", rows.ends.size(), " bags with ", rows.places.size(),
                                                     " places of table ", t, ", want ", bags, " with ", places));
    }
  }
  return absl::OkStatus();
}

uint64_t Model::DropoutSeed(const BatchView& batch) const {
  // Multiplying by an odd factor maps different seeds to different numbers.
  return options_.seed ^ (batch.seed * 0x9E3779B97F4A7C15u);
}

Pass Model::PassOf(size_t stage, const BatchView& batch, bool training) const {
  const ParameterGroup& own = stages_[stage].parameters;
  return {.device = device(chain_.nodes[stage].device),
          .parameters = buffers_->parameters().subspan(own.first, own.count),
          .memory = buffers_->MemoryOf(stage),
          .training = training,
          .dropout = DropoutKey{DropoutSeed(batch), batch.step, stages_[stage].layer},
          .activation = value_plan_.steps[stage].activation,
          .rows = chain_.nodes[stage].table.has_value() ? &rows_[*chain_.nodes[stage].table] : nullptr};
}

absl::Status Model::UploadRows(const BatchView& batch) {
  rows_.resize(chain_.tables.size());
  for (size_t t = 0; t < chain_.tables.size(); ++t) {
    const TableUse& use = chain_.tables[t];
    const RowsView& view = batch.tables[t];
    const int64_t rows = view.values.size() / use.dim;
    if (absl::Status status = buffers_->ReserveRows(t, rows); !status.ok()) return status;
    const auto [values, gradient] = buffers_->RowsOf(t, rows);
    const int64_t fields = use.fields.size();
    rows_[t] = {values, gradient, {view.ends, view.places, fields, use.mean}};
    if (rows == 0) continue;
    const size_t on = buffers_->DeviceOfTable(t);
    if (absl::Status status = device(on).Upload(view.values, *values.buffer, 0); !status.ok()) {
      return Named(on, status);
    }
  }
  return absl::OkStatus();
}

absl::Status Model::UploadBatch(const BatchView& batch) {
  const TimelineScope span(
      timeline_, TimelineRow::kCopies, "upload", "batch",
      batch.features.size() * BytesOf(buffers_->features().type()) + batch.labels.size() * sizeof(float));
  buffers_->NextBatch();
  const size_t first = chain_.DeviceOf(0), last = chain_.DeviceOf(stages_.size());
  if (absl::Status status = device(first).Upload(batch.features, buffers_->features(), 0); !status.ok()) {
    return Named(first, status);
  }
  if (absl::Status status = device(last).Upload(batch.labels, buffers_->labels(), 0); !status.ok()) {
    return Named(last, status);
  }
  return UploadRows(batch);
}

absl::Status Model::RunForward(const BatchView& batch, StepHooks* hooks, const LossGradient* gradient) {
  if (absl::Status status = CheckBatch(batch); !status.ok()) return status;
  if (absl::Status status = UploadBatch(batch); !status.ok()) return status;
  const PassKind pass = hooks != nullptr ? PassKind::kTraining : PassKind::kEvaluation;
  for (const NodeSegment& nodes : node_segments_) {
    const Stage& first = stages_[nodes.first];
    const bool hooked = hooks != nullptr && first.group.has_value();
    ArrivingRows* const arriving =
        hooked && TakesArrivingRows(nodes.first) ? hooks->ArrivingBeforeForward(*first.group) : nullptr;
    if (hooked && arriving == nullptr) {
      if (absl::Status status = hooks->BeforeForward(*first.group); !status.ok()) return status;
    }
    absl::Status status = Repeat(nodes, pass, batch, [&]() -> absl::Status {
      for (size_t i = nodes.first; i < nodes.end; ++i) {
        ArrivingRows* const own = i == nodes.first ? arriving : nullptr;
        if (absl::Status status = RunForward(i, batch, hooks != nullptr, false, own); !status.ok()) return status;
        if (own == nullptr) continue;
        if (absl::Status status = hooks->BeforeForward(*first.group); !status.ok()) return status;
      }
      if (nodes.end < stages_.size()) return absl::OkStatus();
      const TimelineScope span(timeline_, TimelineRow::kCompute, "loss");
      device(chain_.DeviceOf(stages_.size()))
          .Loss(chain_.loss->function(), buffers_->ValueOf(stages_.size(), batch.examples), buffers_->labels(),
                buffers_->totals(), gradient);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

bool Model::TakesBatch(const NodeSegment& nodes) const {
  if (nodes.end == stages_.size()) return true;
  const auto takes = [this](size_t node) {
    const ChainNode& own = chain_.nodes[node];
    return value_plan_.place[own.input] == 0 || value_plan_.place[node + 1] == 0 ||
           (own.sums() && value_plan_.place[own.shortcut] == 0);
  };
  for (size_t i = nodes.first; i < nodes.end; ++i) {
    if (takes(i)) return true;
    if (!recomputed_[i].has_value()) continue;
    const ValuePlan::Run& run = value_plan_.runs[*recomputed_[i]];
    for (size_t j = run.first; j < run.end; ++j) {
      if (takes(j)) return true;
    }
  }
  return false;
}

absl::Status Model::Repeat(const NodeSegment& nodes, PassKind pass, const BatchView& batch,
                           absl::FunctionRef<absl::Status()> issue) {
  const ChainNode& first = chain_.nodes[nodes.first];
  if (first.carries || first.table.has_value()) return issue();
  const uint64_t swapped = buffers_->swapped() && TakesBatch(nodes) ? 1 : 0;
  // Only the segment with the loss uses the loss scale.
  const uint32_t scale = nodes.end == stages_.size() ? std::bit_cast<uint32_t>(batch.loss_scale) : 0;
  const bool records = timeline_ != nullptr && timeline_->on();
  std::string name;
  if (records) name = absl::StrCat(pass == PassKind::kBackward ? "backward " : "forward ", first.name);
  const Segment segment{{reinterpret_cast<uintptr_t>(this), nodes.first, static_cast<uint64_t>(batch.examples),
                         uint64_t{scale} << 32 | static_cast<uint64_t>(pass) << 1 | swapped},
                        DropoutSeed(batch),
                        batch.step,
                        name};
  TimelineSpan span{.row = TimelineRow::kCompute};
  if (records) span.begin = timeline_->Now(), span.step = timeline_->step();
  absl::Status status;
  bool issued = false;
  device(first.device).Repeat(segment, [&] {
    issued = true;
    status = issue();
  });
  if (records && !issued) {
    span.end = timeline_->Now();
    timeline_->Add(span, absl::StrCat(name, " (graph)"));
  }
  return status;
}

absl::StatusOr<BatchResult> Model::ReadLoss(int64_t examples) {
  const size_t last = chain_.DeviceOf(stages_.size());
  float totals[kLossTotals];
  const TimelineScope span(timeline_, TimelineRow::kCopies, "download", "loss", sizeof(totals));
  if (absl::Status status = device(last).Download(buffers_->totals(), 0, absl::MakeSpan(totals)); !status.ok()) {
    return Named(last, status);
  }
  return BatchResult{totals[kLossSum], examples, static_cast<int64_t>(totals[kCorrect])};
}

bool Model::TakesArrivingRows(size_t stage) const {
  const ChainNode& node = chain_.nodes[stage];
  return waits_for_loss() && node.layer != nullptr && node.layer->traits().takes_arriving_rows;
}

absl::Status Model::RunForward(size_t stage, const BatchView& batch, bool training, bool again,
                               ArrivingRows* arriving) {
  const ValuePlan::Step& step = value_plan_.steps[stage];
  const ChainNode& node = chain_.nodes[stage];
  if (step.done_by_the_one_before) return absl::OkStatus();
  const Matrix x = buffers_->ValueOf(node.input, batch.examples), y = buffers_->ValueOf(stage + 1, batch.examples);
  if (node.carries) {
    const TimelineScope span(timeline_, TimelineRow::kCopies, "carry", node.name,
                             x.elements() * BytesOf(x.buffer->type()));
    return transfer_.Copy(device(chain_.DeviceOf(node.input)), x, device(node.device), y);
  }
  const TimelineScope span(timeline_, TimelineRow::kCompute, again ? "recompute" : "forward", node.name);
  if (node.sums()) {
    device(node.device).Add(x, buffers_->ValueOf(node.shortcut, batch.examples), y);
  } else {
    Pass pass = PassOf(stage, batch, training);
    pass.again = again;
    pass.arriving = arriving;
    node.layer->Forward(pass, x, y);
  }
  return absl::OkStatus();
}

absl::Status Model::RunBackward(const BatchView& batch, StepHooks& hooks) {
  // Of the segment before, if the hooks have postponed it.
  std::optional<ReadyGradient> postponed;
  for (auto nodes = node_segments_.rbegin(); nodes != node_segments_.rend(); ++nodes) {
    const Stage& first = stages_[nodes->first];
    std::unique_ptr<RowsOfProduct> rows;
    absl::Status status = Repeat(*nodes, PassKind::kBackward, batch, [&]() -> absl::Status {
      for (size_t i = nodes->end; i-- > nodes->first;) {
        const bool defers = defers_gradients_ && i == nodes->first && first.group.has_value();
        if (absl::Status status = RunBackward(i, batch, defers ? &rows : nullptr); !status.ok()) return status;
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    if (!first.group.has_value()) continue;
    if (!waits_for_loss()) device(chain_.nodes[nodes->first].device).Mark();
    ReadyGradient ready = {*first.group, {first.parameters.first, chain_.nodes[nodes->first].name, std::move(rows)}};
    if (!postponed.has_value() && ready.deferred.rows != nullptr && hooks.Postpones(ready.group)) {
      postponed = std::move(ready);
      continue;
    }
    status = Announce(std::move(ready), hooks);
    if (status.ok() && postponed.has_value()) status = Announce(*std::exchange(postponed, std::nullopt), hooks);
    if (!status.ok()) return status;
  }
  return postponed.has_value() ? Announce(*std::move(postponed), hooks) : absl::OkStatus();
}

absl::Status Model::Announce(ReadyGradient ready, StepHooks& hooks) {
  const size_t parameter = ready.deferred.parameter;
  {
    absl::MutexLock lock(&deferred_mutex_);
    deferred_ = std::move(ready.deferred);
  }
  const absl::Status status = hooks.GradientReady(ready.group);
  ComputeGradient(parameter, 0, parameters_[parameter].elements);
  absl::MutexLock lock(&deferred_mutex_);
  deferred_ = {};
  return status;
}

void Model::ComputeGradient(size_t index, size_t begin, size_t end) {
  absl::MutexLock lock(&deferred_mutex_);
  if (deferred_.rows == nullptr || deferred_.parameter != index || begin >= end) return;
  const TimelineScope span(timeline_, TimelineRow::kCompute, "gradient", deferred_.layer);
  const size_t columns = parameters_[index].elements / parameters_[index].shape[0];
  deferred_.rows->Compute(begin / columns, (end + columns - 1) / columns);
}

absl::Status Model::RunBackward(size_t stage, const BatchView& batch, std::unique_ptr<RowsOfProduct>* later) {
  const ChainNode& node = chain_.nodes[stage];
  const GradientPlan::Step& step = gradient_plan_.steps[stage];
  if (!step.dy.has_value()) return absl::OkStatus();
  if (recomputed_[stage].has_value()) {
    const ValuePlan::Run& run = value_plan_.runs[*recomputed_[stage]];
    for (size_t i = run.first; i < run.end; ++i) {
      if (absl::Status status = RunForward(i, batch, /*training=*/true, /*again=*/true); !status.ok()) return status;
    }
  }
  const Matrix dy = buffers_->GradientOf(stage + 1, *step.dy, batch.examples);
  Matrix dx;
  if (step.dx.has_value()) dx = buffers_->GradientOf(node.input, *step.dx, batch.examples);
  if (node.carries && step.dx.has_value()) {
    const TimelineScope span(timeline_, TimelineRow::kCopies, "carry back", node.name,
                             dy.elements() * BytesOf(dy.buffer->type()));
    absl::Status status = transfer_.Copy(device(node.device), dy, device(chain_.DeviceOf(node.input)), dx);
    if (!status.ok()) return status;
  }
  const TimelineScope span(timeline_, TimelineRow::kCompute, "backward", node.name);
  if (node.layer != nullptr) {
    Pass pass = PassOf(stage, batch, true);
    pass.later = later;
    node.layer->Backward(pass, buffers_->ValueOf(node.input, batch.examples), dy, step.dx.has_value() ? &dx : nullptr);
  }
  if (step.other.has_value()) {
    const Matrix other = buffers_->GradientOf(node.input, *step.other, batch.examples);
    device(chain_.DeviceOf(node.input)).Add(node.sums() ? dy : dx, other, dx);
  }
  return absl::OkStatus();
}

}  // namespace ballast
