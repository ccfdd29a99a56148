// SPDX-License-Identifier: Apache-2.0
#include "worker/training/parameter_exchange.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

// How often a wait looks whether it is interrupted, and how long it then goes on.
constexpr absl::Duration kGlance = absl::Milliseconds(100);
constexpr absl::Duration kGrace = absl::Seconds(1);

// Multiplies by `factor`; whether all were finite.
bool Unscale(float factor, absl::Span<float> gradient) {
  constexpr uint32_t kExponent = 0x7F800000;
  bool finite = true;
  for (float& element : gradient) {
    finite &= (absl::bit_cast<uint32_t>(element) & kExponent) != kExponent;
    element *= factor;
  }
  return finite;
}

}  // namespace

ParameterExchange::ParameterExchange(Model* model, Client* client, const Options& options)
    : model_(model), client_(client), options_(options) {
  if (options.scale_loss) stats_.loss_scale = scaler_.emplace().scale();
  for (const ParameterGroup& parameters : model->parameter_groups()) {
    Group group;
    group.parameters = parameters;
    // "dense1/weight" is of the layer dense1.
    const std::string& name = model->parameters()[parameters.first].name;
    group.layer = name.substr(0, name.rfind('/'));
    for (size_t i = parameters.first; i < parameters.first + parameters.count; ++i) {
      absl::Span<float> values = model->HostParameter(i);
      absl::Span<const float> gradient = model->HostGradient(i);
      const size_t elements = model->parameters()[i].elements;
      if (gradient.empty() || scaler_.has_value()) gradient = group.gradient_buffers.emplace_back(elements);
      if (values.empty()) values = absl::MakeSpan(group.value_buffers.emplace_back(elements));
      group.values.push_back({static_cast<uint32_t>(i), values});
      group.gradients.push_back({static_cast<uint32_t>(i), gradient});
    }
    group.contributions.resize(parameters.count);
    groups_.push_back(std::move(group));
  }
}

std::vector<v1::TensorSpec> ParameterExchange::Specs(const Model& model, const v1::Job& job,
                                                     const v1::Optimizer& optimizer) {
  std::vector<v1::TensorSpec> specs;
  for (const Parameter& parameter : model.parameters()) {
    v1::TensorSpec& spec = specs.emplace_back();
    spec.set_id(specs.size() - 1);
    spec.set_name(parameter.name);
    spec.mutable_shape()->Add(parameter.shape.begin(), parameter.shape.end());
    *spec.mutable_initializer() = parameter.initializer;
    *spec.mutable_optimizer() = optimizer;
    spec.set_seed(job.seed());
  }
  return specs;
}

template <typename T>
absl::StatusOr<T> ParameterExchange::Await(const Future<T>& future, absl::string_view what) {
  const TimelineScope span(future.Ready() ? nullptr : options_.timeline, TimelineRow::kWait, "wait for", what);
  const absl::Time start = absl::Now();
  absl::Time give_up = absl::InfiniteFuture();
  while (!future.WaitFor(kGlance)) {
    if (options_.interrupted->load()) give_up = std::min(give_up, absl::Now() + kGrace);
    if (absl::Now() > give_up) return absl::CancelledError("interrupted while waiting for servers");
  }
  stats_.waited += absl::Now() - start;
  return future.Get();
}

std::optional<TimelineSpan> ParameterExchange::BeginSpan() const {
  if (options_.timeline == nullptr || !options_.timeline->on()) return std::nullopt;
  return TimelineSpan{.begin = options_.timeline->Now(), .step = options_.timeline->step()};
}

void ParameterExchange::Note(Group& group, const PushResult& result) {
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
  if (group.value_buffers.empty()) return absl::OkStatus();
  for (const TensorValues& values : group.values) {
    if (absl::Status status = model_->SetParameter(values.tensor_id, values.values); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ParameterExchange::PullAll(uint64_t step) {
  std::vector<TensorValues> all;
  for (const Group& group : groups_) all.insert(all.end(), group.values.begin(), group.values.end());
  std::optional<TimelineSpan> span = BeginSpan();
  absl::StatusOr<PullResult> pulled = Await(client_->Pull(step, all), "weights");
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
  }
  return absl::OkStatus();
}

void ParameterExchange::BeginBatch(uint64_t step, uint32_t examples, bool last_of_step) {
  if (std::exchange(ends_step_, last_of_step)) batches_ = 0;
  if (std::exchange(ends_local_step_, false)) accumulated_ = 0;
  if (batches_++ == 0) {
    step_examples_ = 0;
    ++stats_.steps;
  }
  ends_local_step_ = ++accumulated_ == options_.accumulate_batches || last_of_step;
  step_ = step;
  examples_ = examples;
  step_examples_ += examples;
}

absl::Status ParameterExchange::AwaitGroup(Group& group) {
  if (!group.in_flight.has_value()) return absl::OkStatus();
  absl::StatusOr<PushResult> result = Await(*group.in_flight, group.layer);
  if (!result.ok()) return result.status();
  group.in_flight.reset();
  Note(group, *result);
  ++pushes_;
  staleness_sum_ += result->max_staleness;
  stats_.max_staleness = std::max(stats_.max_staleness, result->max_staleness);
  stats_.learning_rate = options_.local_learning_rate > 0 ? options_.local_learning_rate : result->learning_rate;
  stats_.dropped += result->dropped;
  stats_.bytes_sent += result->bytes_sent;
  stats_.bytes_received += result->bytes_received;
  return Upload(group);
}

absl::Status ParameterExchange::BeforeForward(size_t group) { return AwaitGroup(groups_[group]); }

absl::Status ParameterExchange::AfterForward(const BatchResult& result) {
  if (std::isfinite(result.loss_sum)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("the loss is ", result.loss_sum, " at step ", step_,
                                            ": training has diverged. The usual cause is too high a learning rate (",
                                            stats_.learning_rate,
                                            " here); others are features that are not normalised, or NaN in the data"));
}

absl::Status ParameterExchange::GradientReady(size_t index) {
  Group& group = groups_[index];
  if (absl::Status status = FetchGradients(group); !status.ok()) return status;
  if (!scaler_.has_value()) return EndBatch(group);
  // The first layer's come last.
  return index == 0 ? EndScaledBatch() : absl::OkStatus();
}

absl::Status ParameterExchange::FetchGradients(Group& group) {
  for (size_t i = 0; i < group.gradient_buffers.size(); ++i) {
    std::vector<float>& gradient = group.gradient_buffers[i];
    absl::Status status = model_->GetGradient(group.parameters.first + i, absl::MakeSpan(gradient));
    if (!status.ok()) return status;
    if (scaler_.has_value()) finite_ = Unscale(1 / scaler_->scale(), absl::MakeSpan(gradient)) && finite_;
  }
  return absl::OkStatus();
}

absl::Status ParameterExchange::EndScaledBatch() {
  if (!finite_) {
    if (scaler_->scale() == LossScaler::kLeast) {
      return absl::OutOfRangeError(
          absl::StrCat("gradients are not finite at step ", step_, ", even at loss scale ", scaler_->scale(),
                       ": training has diverged. The usual cause is too high a learning rate (", stats_.learning_rate,
                       " here); or use --precision bf16"));
    }
    ++stats_.skipped;
    step_examples_ -= examples_;
    examples_ = 0;
  }
  scaler_->Update(std::exchange(finite_, true));
  stats_.loss_scale = scaler_->scale();
  return EndBatchOfAll();
}

absl::Status ParameterExchange::PassEmptyBatch() {
  if (absl::Status status = AwaitAll(); !status.ok()) return status;
  return EndBatchOfAll();
}

absl::Status ParameterExchange::EndBatchOfAll() {
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    if (absl::Status status = EndBatch(*group); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ParameterExchange::EndBatch(Group& group) {
  const bool local = options_.local_learning_rate > 0;
  // A step of one batch is pushed from where its gradient lies.
  const bool gathers = local || batches_ > 1 || !ends_step_;
  for (size_t i = 0; gathers && i < group.contributions.size(); ++i) {
    Contribution& contribution = group.contributions[i];
    if (examples_ > 0) contribution.Add(group.gradients[i].values, examples_);
    if (local && ends_local_step_) contribution.Step(options_.local_learning_rate, group.values[i].values);
  }
  if (ends_step_) {
    Push(group);
    return absl::OkStatus();
  }
  return local && ends_local_step_ ? Upload(group) : absl::OkStatus();
}

void ParameterExchange::Push(Group& group) {
  const bool local = options_.local_learning_rate > 0;
  std::vector<TensorGradient> gradients = group.gradients;
  for (size_t i = 0; i < gradients.size(); ++i) {
    Contribution& contribution = group.contributions[i];
    if (local) {
      gradients[i].values = contribution.TakeChange(group.values[i].values);
    } else if (batches_ > 1 || examples_ == 0) {
      gradients[i].values = contribution.TakeMean();
    }
  }
  const uint64_t examples = std::min<uint64_t>(step_examples_, std::numeric_limits<uint32_t>::max());
  group.begun = BeginSpan();
  group.in_flight = client_->PushPull(step_, examples, gradients, group.values);
}

absl::Status ParameterExchange::AwaitAll() {
  for (Group& group : groups_) {
    if (absl::Status status = AwaitGroup(group); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ParameterExchange::Pause() {
  if (absl::Status status = AwaitAll(); !status.ok()) return status;
  return client_->Pause();
}

absl::Status ParameterExchange::AbandonAndPull() {
  // What is still in flight can only be overtaken by values as new or newer.
  for (Group& group : groups_) group.in_flight.reset();
  return PullAll(0);
}

int64_t ParameterExchange::StagingBytes() const {
  // A sum of several batches' gradients, and the weights before local steps: a copy of each tensor for either.
  const bool local = options_.local_learning_rate > 0;
  const int64_t kept = (local || options_.accumulate_batches > 1 ? 1 : 0) + (local ? 1 : 0);
  int64_t floats = 0;
  for (const Group& group : groups_) {
    for (const std::vector<float>& buffer : group.value_buffers) floats += buffer.size();
    for (const std::vector<float>& buffer : group.gradient_buffers) floats += buffer.size();
    for (const TensorValues& values : group.values) floats += kept * values.values.size();
  }
  return floats * static_cast<int64_t>(sizeof(float));
}

ExchangeStats ParameterExchange::TakeStats() {
  ExchangeStats stats = stats_;
  stats.mean_staleness = pushes_ == 0 ? 0 : static_cast<double>(staleness_sum_) / pushes_;
  stats_ = {.learning_rate = stats.learning_rate, .loss_scale = stats.loss_scale};
  pushes_ = 0;
  staleness_sum_ = 0;
  return stats;
}

}  // namespace ballast
