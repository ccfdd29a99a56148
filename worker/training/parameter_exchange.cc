// SPDX-License-Identifier: Apache-2.0
#include "worker/training/parameter_exchange.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/training/deferred_gradient.h"

namespace ballast {
namespace {

// Timeout for running copies to or from the device; longer than a device takes for a step.
constexpr absl::Duration kCopyTimeout = absl::Seconds(60);

// Empty before the first push, which tells the rate.
std::string RateText(float learning_rate) {
  return learning_rate > 0 ? absl::StrCat(" (", learning_rate, " here)") : "";
}

absl::Status CheckFinite(double loss_sum, uint64_t step, float learning_rate) {
  if (std::isfinite(loss_sum)) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("the loss is ", loss_sum, " at step ", step,
                   ": training has diverged. The usual cause is too high a learning rate", RateText(learning_rate),
                   "; other causes are features that are not normalized, and NaN in the data"));
}

// Bytes of a layer's gradients.
int64_t BytesOf(const TrainableModel& model, const ParameterGroup& parameters) {
  int64_t floats = 0;
  for (size_t i = parameters.first; i < parameters.first + parameters.count; ++i) {
    floats += model.parameters()[i].elements;
  }
  return floats * static_cast<int64_t>(sizeof(float));
}

// Smaller gradients are one slice, which gains nothing.
constexpr int64_t kLeastDeferred = int64_t{128} << 10;

}  // namespace

ParameterExchange::ParameterExchange(TrainableModel* model, Client* client, const Options& options)
    : model_(model),
      client_(client),
      options_(options),
      // With threads of its own, the pipeline is ready later than the response.
      wait_(client,
            {.helps = model->waits_for_loss(), .interrupted = options.interrupted, .timeline = options.timeline}),
      defers_(model->DeferGradients(options.defer_gradients && options.accumulate_batches == 1 &&
                                    options.local_learning_rate == 0 && !options.scale_loss)),
      unscaler_(model),
      meter_(options.measure_interval) {
  if (options.scale_loss) stats_.loss_scale = scaler_.emplace().scale();
  std::string first_layer;
  // Bytes of the group's layers after its first layer.
  int64_t joined_bytes = 0;
  for (const ParameterGroup& parameters : model->parameter_groups()) {
    // "dense1/weight" belongs to layer "dense1".
    const std::string& name = model->parameters()[parameters.first].name;
    const std::string layer = name.substr(0, name.rfind('/'));
    const int64_t bytes = BytesOf(*model, parameters);
    const bool merges = !groups_.empty() && joined_bytes + bytes <= options.merge_bytes &&
                        model->DeviceGradient(parameters.first).on.device ==
                            model->DeviceGradient(groups_.back().gradients[0].tensor_id).on.device;
    joined_bytes = merges ? joined_bytes + bytes : 0;
    if (!merges) {
      groups_.emplace_back();
      first_layer = layer;
    }
    groups_.back().layer = merges ? absl::StrCat(first_layer, " to ", layer) : layer;
    groups_.back().bytes += bytes;
    AddTensors(parameters, groups_.back());
    places_.push_back({groups_.size() - 1, !merges});
    several_devices_ =
        several_devices_ || model->DeviceGradient(0).on.device != model->DeviceGradient(parameters.first).on.device;
  }
  pipeline_ = TransferPipeline::Create(/*threaded=*/!model->waits_for_loss(), groups_.size(),
                                       [this](size_t group) { return Upload(groups_[group]); });
}

void ParameterExchange::AddTensors(const ParameterGroup& parameters, Group& group) {
  for (size_t i = parameters.first; i < parameters.first + parameters.count; ++i) {
    const int64_t elements = model_->parameters()[i].elements;
    Device& device = *model_->DeviceGradient(i).on.device;
    TensorGradient& gradient = group.gradients.emplace_back();
    gradient.tensor_id = i;
    gradient.values = model_->HostGradient(i);
    if (options_.codec != nullptr) gradient.encoded = options_.codec->gradient(i);
    if (gradient.values.empty() && gradient.encoded.empty()) {
      gradient.values = group.gradient_buffers.emplace_back(device.AllocateHost(elements))->values();
    }
    TensorValues& values = group.values.emplace_back();
    values.tensor_id = i;
    values.values = model_->HostParameter(i);
    if (options_.codec != nullptr) values.encoded = options_.codec->values(i);
    if (values.values.empty() && values.encoded.empty()) {
      values.values = group.value_buffers.emplace_back(device.AllocateHost(elements))->values();
    }
    group.direct.push_back(MakeDirectCopies(group));
    const bool large =
        elements >= kLeastDeferred && gradient.encoded.empty() && group.direct.back().gradient == nullptr;
    group.deferred.push_back(defers_ && large ? std::make_unique<DeferredGradient>(model_, i) : nullptr);
  }
  // Values that the client writes where the model reads them.
  group.watches = model_->waits_for_loss() && options_.local_learning_rate == 0 && group.value_buffers.empty() &&
                  group.values[0].encoded.empty() &&
                  model_->parameters()[group.values[0].tensor_id].elements >= kLeastDeferred;
  group.accumulators.resize(group.gradients.size());
}

ParameterExchange::DirectCopies ParameterExchange::MakeDirectCopies(const Group& group) {
  const size_t index = group.values.back().tensor_id;
  const int64_t bytes = model_->parameters()[index].elements * static_cast<int64_t>(sizeof(float));
  if (bytes < options_.min_direct_bytes || !model_->DeviceParameter(index).has_value()) return {};
  // The host computes with both under local SGD, and with gradients that it sums or has to hold back.
  if (options_.local_learning_rate > 0) return {};
  const bool sums = options_.accumulate_batches > 1 || options_.scale_loss;
  const bool fetches = !sums && group.gradients.back().encoded.empty() && !group.gradient_buffers.empty();
  const bool stores = group.values.back().encoded.empty() && !group.value_buffers.empty();
  if (!fetches && !stores) return {};
  DeviceElements* const elements =
      elements_.emplace_back(std::make_unique<DeviceElements>(model_, index, group.layer, options_.timeline)).get();
  return {.gradient = fetches ? elements : nullptr, .values = stores ? elements : nullptr};
}

std::vector<v1::TensorSpec> ParameterExchange::Specs(const TrainableModel& model, const v1::Job& job,
                                                     const v1::Optimizer& optimizer,
                                                     absl::Span<const size_t> provided) {
  std::vector<v1::TensorSpec> specs;
  for (const ParameterGroup& group : model.parameter_groups()) {
    for (size_t i = group.first; i < group.first + group.count; ++i) {
      const Parameter& parameter = model.parameters()[i];
      v1::TensorSpec& spec = specs.emplace_back();
      spec.set_id(i);
      spec.set_name(parameter.name);
      spec.mutable_shape()->Add(parameter.shape.begin(), parameter.shape.end());
      *spec.mutable_initializer() = parameter.initializer;
      if (absl::c_linear_search(provided, i)) spec.mutable_initializer()->mutable_provided();
      *spec.mutable_optimizer() = optimizer;
      spec.set_seed(job.seed());
    }
  }
  return specs;
}

absl::Status ParameterExchange::Await(absl::FunctionRef<bool(absl::Duration)> ready, absl::string_view what) {
  const absl::StatusOr<absl::Duration> waited = wait_.Await(ready, what);
  if (!waited.ok()) return waited.status();
  stats_.waited += *waited;
  return absl::OkStatus();
}

std::optional<TimelineSpan> ParameterExchange::BeginSpan() const {
  if (options_.timeline == nullptr || !options_.timeline->on()) return std::nullopt;
  return TimelineSpan{.begin = options_.timeline->Now(), .step = options_.timeline->step()};
}

void ParameterExchange::RecordSpans(Group& group, const PushResult& result) {
  std::optional<TimelineSpan> span = std::exchange(group.begun, std::nullopt);
  if (!span.has_value()) return;
  span->row = TimelineRow::kPush;
  span->end = result.answers.last;
  span->bytes = result.bytes_sent;
  options_.timeline->Add(*span, group.layer);
  span->row = TimelineRow::kPull;
  span->begin = result.answers.first;
  span->end = result.answers.end;
  span->bytes = result.bytes_received;
  options_.timeline->Add(*span, group.layer);
}

absl::Status ParameterExchange::Upload(const Group& group) {
  for (size_t i = 0; i < group.values.size(); ++i) {
    const TensorValues& values = group.values[i];
    absl::Status status;
    if (!values.encoded.empty()) {
      status = options_.codec->Upload(values.tensor_id);
    } else if (group.direct[i].stores) {
      // The client has stored them.
    } else if (!group.value_buffers.empty()) {
      status = model_->SetParameter(values.tensor_id, values.values);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void ParameterExchange::Decode(const Group& group) {
  for (const TensorValues& values : group.values) {
    if (!values.encoded.empty()) options_.codec->Decode(values.tensor_id);
  }
}

absl::Status ParameterExchange::PullAll(uint64_t step) {
  std::vector<TensorValues> all;
  for (Group& group : groups_) {
    all.insert(all.end(), group.values.begin(), group.values.end());
    for (DirectCopies& direct : group.direct) direct.stores = false;
  }
  std::optional<TimelineSpan> span = BeginSpan();
  const Future<PullResult> pull = client_->Pull(step, all);
  absl::Status status = Await([&](absl::Duration timeout) { return pull.WaitFor(timeout); }, "weights");
  if (!status.ok()) return status;
  const absl::StatusOr<PullResult> pulled = pull.Get();
  if (!pulled.ok()) return pulled.status();
  if (span.has_value()) {
    span->row = TimelineRow::kPull;
    span->end = pulled->answers.end;
    span->bytes = pulled->bytes_received;
    options_.timeline->Add(*span, "all weights");
  }
  stats_.bytes_received += pulled->bytes_received;
  for (const Group& group : groups_) {
    if (absl::Status status = Upload(group); !status.ok()) return status;
    Decode(group);
  }
  return absl::OkStatus();
}

void ParameterExchange::BeginBatch(uint64_t step, uint32_t examples, bool last_of_step,
                                   std::optional<double> schedule_position) {
  if (std::exchange(batch_.ends_step, last_of_step)) batch_.batches = 0;
  if (batch_.ends_local_step) accumulated_ = 0;
  if (batch_.batches++ == 0) {
    batch_.step_examples = 0;
    batch_.schedule_position = schedule_position;
    batch_.measured = options_.measure_interval < absl::InfiniteDuration() && options_.local_learning_rate == 0 &&
                      meter_.Begin(groups_.size(), absl::Now());
    ++stats_.steps;
  }
  batch_.ends_local_step = ++accumulated_ == options_.accumulate_batches || last_of_step;
  batch_.step = step;
  batch_.examples = examples;
  batch_.step_examples += examples;
  batch_.loss_unchecked = true;
}

GroupMeasure ParameterExchange::Measure(const Group& group, absl::Span<const TensorGradient> gradients,
                                        const CurrentBatch& batch) const {
  GroupMeasure measure;
  // A step whose batches all overflowed has no gradient.
  bool known = batch.step_examples > 0;
  double squares = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    known = known && gradients[i].encoded.empty() && gradients[i].copier == nullptr;
    if (known) squares += SumOfSquares(gradients[i].values);
    if (group.values[i].encoded.empty() && !group.direct[i].stores) {
      measure.weights.emplace_back(group.values[i].values);
    }
  }
  if (known) measure.gradient_squares = squares;
  return measure;
}

void ParameterExchange::AddMeasure(Group& group) {
  const std::optional<GroupMeasure> measure = std::exchange(group.measure, std::nullopt);
  if (!measure.has_value()) return;
  std::optional<double> changes;
  if (measure->weights.size() == group.values.size()) {
    changes = 0;
    for (size_t i = 0; i < group.values.size(); ++i) {
      *changes += measure->weights[i].SumOfSquaredChanges(group.values[i].values);
    }
  }
  meter_.Add(*measure, changes);
  stats_.figures = meter_.figures();
}

absl::Status ParameterExchange::AwaitGroup(size_t index) {
  Group& group = groups_[index];
  absl::Status status = Await([&](absl::Duration timeout) { return pipeline_->WaitFor(index, timeout); }, group.layer);
  if (!status.ok()) return status;
  const absl::StatusOr<std::optional<PushResult>> pushed = pipeline_->Take(index);
  if (!pushed.ok()) return pushed.status();
  if (!pushed->has_value()) return absl::OkStatus();
  Decode(group);
  const PushResult& result = **pushed;
  RecordSpans(group, result);
  AddMeasure(group);
  ++stats_.pushes;
  stats_.staleness_sum += result.max_staleness;
  stats_.max_staleness = std::max(stats_.max_staleness, result.max_staleness);
  stats_.learning_rate = options_.local_learning_rate > 0 ? options_.local_learning_rate : result.learning_rate;
  stats_.dropped += result.dropped;
  stats_.bytes_sent += result.bytes_sent;
  stats_.bytes_received += result.bytes_received;
  return absl::OkStatus();
}

std::optional<ArrivingRows::Range> ParameterExchange::ArrivingGroup::Next() {
  Group& group = exchange_.groups_[group_];
  while (!over_ && left_ > 0) {
    std::optional<ArrivedElements::Part> part;
    status_ = exchange_.Await(
        [&](absl::Duration timeout) {
          // Without a wait if the push has ended, because then all parts have come that will.
          const bool ended = exchange_.pipeline_->WaitFor(group_, absl::ZeroDuration());
          part = group.arrived->Take(ended ? absl::ZeroDuration() : timeout);
          return part.has_value() || ended;
        },
        group.layer);
    if (!status_.ok() || !part.has_value()) break;
    left_ -= std::min(left_, part->elements);
    // A row of which a part is elsewhere is computed at the end.
    const Range whole = {static_cast<int64_t>((part->offset + columns_ - 1) / columns_),
                         static_cast<int64_t>((part->offset + part->elements) / columns_)};
    if (whole.begin < whole.end) return whole;
  }
  if (!std::exchange(over_, true) && status_.ok()) status_ = exchange_.AwaitGroup(group_);
  return std::nullopt;
}

ArrivingRows* ParameterExchange::ArrivingBeforeForward(size_t layer) {
  arriving_.reset();
  const Group& group = groups_[places_[layer].group];
  if (!places_[layer].first || group.arrived == nullptr ||
      pipeline_->WaitFor(places_[layer].group, absl::ZeroDuration())) {
    return nullptr;
  }
  const Parameter& parameter = model_->parameters()[group.values[0].tensor_id];
  return &arriving_.emplace(this, places_[layer].group, parameter.elements, parameter.elements / parameter.shape[0]);
}

absl::Status ParameterExchange::BeforeForward(size_t layer) {
  if (arriving_.has_value()) {
    const absl::Status status = arriving_->status();
    arriving_.reset();
    if (!status.ok()) return status;
  }
  return places_[layer].first ? AwaitGroup(places_[layer].group) : absl::OkStatus();
}

absl::Status ParameterExchange::AfterForward(const BatchResult& result) {
  batch_.loss_unchecked = false;
  return CheckFinite(result.loss_sum, batch_.step, stats_.learning_rate);
}

absl::Status ParameterExchange::GradientReady(size_t layer) {
  // Backward computes the first of several layers last.
  if (!places_[layer].first) return absl::OkStatus();
  const size_t index = places_[layer].group;
  Group& group = groups_[index];
  if (absl::Status status = Prepare(group); !status.ok()) return status;
  batch_.learning_rate = stats_.learning_rate;
  group.sent = batch_;
  batch_.loss_unchecked = false;
  absl::Status status = pipeline_->Begin(index, [this, index] { return Collect(groups_[index]); });
  // Backward computes the first layer's gradients last.
  return status.ok() && scaler_.has_value() && index == 0 ? EndScaledBatch() : status;
}

// The first group's gradient is the last that backward computes, and its values are the first that forward needs: its
// round trip is what a step waits for. The gradient of the second is computed meanwhile, if forward of the first takes
// long enough for a round trip of the second.
bool ParameterExchange::Postpones(size_t layer) {
  return places_[layer].group == 1 && places_[layer].first && groups_[0].deferred[0] != nullptr &&
         groups_[1].bytes <= groups_[0].bytes;
}

absl::Status ParameterExchange::Prepare(const Group& group) {
  Device* changed_on = nullptr;
  for (const TensorGradient& gradient : group.gradients) {
    const size_t index = gradient.tensor_id;
    if (scaler_.has_value()) {
      if (absl::Status status = unscaler_.Unscale(index, 1 / scaler_->scale()); !status.ok()) return status;
    }
    if (!gradient.encoded.empty()) options_.codec->Encode(index);
    if (scaler_.has_value() || !gradient.encoded.empty()) changed_on = model_->DeviceGradient(index).on.device;
  }
  if (changed_on != nullptr) changed_on->Mark();
  return absl::OkStatus();
}

absl::StatusOr<TransferPipeline::Pushed> ParameterExchange::Collect(Group& group) {
  if (group.sent.loss_unchecked) {
    const absl::StatusOr<double> loss_sum = model_->LossSum();
    if (!loss_sum.ok()) return loss_sum.status();
    absl::Status status = CheckFinite(*loss_sum, group.sent.step, group.sent.learning_rate);
    if (!status.ok()) return status;
  }
  if (absl::Status status = FetchGradients(group); !status.ok()) return status;
  if (scaler_.has_value()) return std::nullopt;
  return EndBatch(group, group.sent);
}

absl::Status ParameterExchange::FetchGradients(Group& group) {
  const bool one_batch = group.sent.batches == 1 && group.sent.ends_step;
  std::vector<HostCopy> copies;
  for (size_t i = 0; i < group.gradients.size(); ++i) {
    const size_t index = group.gradients[i].tensor_id;
    DirectCopies& direct = group.direct[i];
    direct.fetches = direct.gradient != nullptr && one_batch && client_->SharesMemory(index);
    if (direct.fetches) {
      if (absl::Status status = direct.gradient->AwaitGradient(); !status.ok()) return status;
    } else if (!group.gradients[i].encoded.empty()) {
      copies.push_back(options_.codec->Encoded(index));
    } else if (!group.gradient_buffers.empty()) {
      copies.push_back({model_->DeviceGradient(index).elements.buffer, group.gradient_buffers[i]->values()});
    }
  }
  if (copies.empty()) return absl::OkStatus();
  uint64_t bytes = 0;
  for (const HostCopy& copy : copies) bytes += copy.values.size() * sizeof(float);
  const TimelineScope span(options_.timeline, TimelineRow::kCopies, "download", group.layer, bytes);
  // A group is on one device.
  const NamedDevice on = model_->DeviceGradient(group.gradients[0].tensor_id).on;
  const absl::Status status = on.device->DownloadAll(copies);
  if (status.ok() || (!several_devices_ && group.gradients[0].encoded.empty())) return status;
  return absl::Status(status.code(), absl::StrCat("device ", on.name, ": ", status.message()));
}

absl::Status ParameterExchange::EndScaledBatch() {
  const absl::StatusOr<bool> finite = unscaler_.TakeFinite();
  if (!finite.ok()) return finite.status();
  // Waits for the downloads, and returns the pipeline's error if the loss is not finite.
  for (size_t index = groups_.size(); index-- > 0;) {
    if (!pipeline_->WaitFor(index, kCopyTimeout)) {
      return absl::DeadlineExceededError(absl::StrCat("timed out after ", absl::FormatDuration(kCopyTimeout),
                                                      " copying the gradients of ", groups_[index].layer,
                                                      " from the device"));
    }
    if (absl::Status status = pipeline_->Take(index).status(); !status.ok()) return status;
  }
  if (!*finite) {
    if (scaler_->scale() == LossScaler::kMin) {
      return absl::OutOfRangeError(absl::StrCat("gradients are not finite at step ", batch_.step,
                                                ", even at loss scale ", scaler_->scale(),
                                                ": training has diverged. The usual cause is too high a learning rate",
                                                RateText(stats_.learning_rate), "; lower it, or use --precision bf16"));
    }
    ++stats_.skipped;
    batch_.step_examples -= batch_.examples;
    batch_.examples = 0;
  }
  scaler_->Update(*finite);
  stats_.loss_scale = scaler_->scale();
  return EndBatchOfAll();
}

absl::Status ParameterExchange::PassEmptyBatch() {
  if (absl::Status status = AwaitAll(); !status.ok()) return status;
  return EndBatchOfAll();
}

absl::Status ParameterExchange::EndBatchOfAll() {
  for (size_t index = groups_.size(); index-- > 0;) {
    absl::StatusOr<TransferPipeline::Pushed> pushed = EndBatch(groups_[index], batch_);
    if (!pushed.ok()) return pushed.status();
    if (!pushed->has_value()) continue;
    if (absl::Status status = pipeline_->Begin(index, **std::move(pushed)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<TransferPipeline::Pushed> ParameterExchange::EndBatch(Group& group, const CurrentBatch& batch) {
  const bool local = options_.local_learning_rate > 0;
  // A step of one batch is pushed from the gradient's own memory, without an accumulator.
  const bool accumulates = local || batch.batches > 1 || !batch.ends_step;
  for (size_t i = 0; accumulates && i < group.accumulators.size(); ++i) {
    GradientAccumulator& accumulator = group.accumulators[i];
    if (!group.gradients[i].encoded.empty()) {
      return absl::InternalError(absl::StrCat("gradient of ", group.layer, " is encoded, want floats to sum"));
    }
    if (batch.examples > 0) accumulator.Add(group.gradients[i].values, batch.examples);
    if (local && batch.ends_local_step) accumulator.Step(options_.local_learning_rate, group.values[i].values);
  }
  if (batch.ends_step) return Push(group, batch);
  if (local && batch.ends_local_step) {
    if (absl::Status status = Upload(group); !status.ok()) return status;
  }
  return std::nullopt;
}

Future<PushResult> ParameterExchange::Push(Group& group, const CurrentBatch& batch) {
  const bool local = options_.local_learning_rate > 0;
  std::vector<TensorGradient> gradients = group.gradients;
  std::vector<TensorValues> values = group.values;
  for (size_t i = 0; i < gradients.size(); ++i) {
    DirectCopies& direct = group.direct[i];
    direct.stores = direct.values != nullptr && client_->SharesMemory(values[i].tensor_id);
    if (direct.stores) values[i].copier = direct.values;
    GradientAccumulator& accumulator = group.accumulators[i];
    if (local) {
      gradients[i].values = accumulator.TakeChange(group.values[i].values);
    } else if (batch.batches > 1 || batch.examples == 0) {
      gradients[i].values = accumulator.TakeMean();
      gradients[i].encoded = {};
    } else if (direct.fetches) {
      gradients[i].copier = direct.gradient;
    } else if (group.deferred[i] != nullptr && !batch.measured) {
      gradients[i].copier = group.deferred[i].get();
    } else if (defers_) {
      model_->ComputeGradient(gradients[i].tensor_id, 0, gradients[i].values.size());
    }
  }
  group.arrived = group.watches ? std::make_shared<ArrivedElements>() : nullptr;
  values[0].arrived = group.arrived;
  const uint64_t examples = std::min<uint64_t>(batch.step_examples, std::numeric_limits<uint32_t>::max());
  group.begun = BeginSpan();
  if (batch.measured) group.measure = Measure(group, gradients, batch);
  return client_->PushPull(batch.step, examples, gradients, values, batch.schedule_position);
}

absl::Status ParameterExchange::AwaitAll() {
  for (size_t index = 0; index < groups_.size(); ++index) {
    if (absl::Status status = AwaitGroup(index); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ParameterExchange::Pause() {
  if (absl::Status status = AwaitAll(); !status.ok()) return status;
  return client_->Pause();
}

absl::Status ParameterExchange::AbandonAndPull() {
  if (absl::Status status = pipeline_->Abandon(kCopyTimeout); !status.ok()) return status;
  for (const std::unique_ptr<DeviceElements>& elements : elements_) elements->Close();
  // A response still in flight carries values that are no newer than those of this pull.
  return PullAll(0);
}

int64_t ParameterExchange::StagingBytes() const {
  // One copy of each tensor for the sum of several batches' gradients, and one for the weights before local steps.
  const bool local = options_.local_learning_rate > 0;
  const int64_t copies = (local || options_.accumulate_batches > 1 ? 1 : 0) + (local ? 1 : 0);
  int64_t floats = 0;
  for (const Group& group : groups_) {
    for (const auto* buffers : {&group.value_buffers, &group.gradient_buffers}) {
      for (const std::unique_ptr<HostMemory>& buffer : *buffers) floats += buffer->values().size();
    }
    for (const TensorValues& values : group.values) floats += copies * model_->parameters()[values.tensor_id].elements;
  }
  const int64_t encoded = options_.codec == nullptr ? 0 : options_.codec->HostBytes();
  return floats * static_cast<int64_t>(sizeof(float)) + encoded;
}

int64_t ParameterExchange::PinnedBytes() const {
  int64_t floats = 0;
  for (const Group& group : groups_) {
    for (const auto* buffers : {&group.value_buffers, &group.gradient_buffers}) {
      for (const std::unique_ptr<HostMemory>& buffer : *buffers)
        floats += buffer->pinned() ? buffer->values().size() : 0;
    }
  }
  const int64_t encoded = options_.codec == nullptr ? 0 : options_.codec->PinnedBytes();
  return floats * static_cast<int64_t>(sizeof(float)) + encoded;
}

ExchangeStats ParameterExchange::TakeStats() {
  ExchangeStats stats = stats_;
  stats_ = {.learning_rate = stats.learning_rate, .loss_scale = stats.loss_scale, .figures = stats.figures};
  return stats;
}

}  // namespace ballast
