// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/metrics/memory_bytes.h"
#include "common/trace/timeline_recorder.h"
#include "worker/device/named_device.h"
#include "worker/model/layers/layer.h"

namespace ballast {

// The parameters of one layer, as indices [first, first + count).
struct ParameterGroup {
  size_t first = 0;
  size_t count = 0;
};

// A view of the rows that a batch uses of one table. Does not own them.
struct RowsView {
  // [rows, dim], row-major.
  absl::Span<const float> values;
  // The rows of each bag; see RowBags. The bags are those of the table's fields, in the order of TableUse::fields.
  absl::Span<const uint32_t> ends;
  absl::Span<const uint32_t> places;
};

// A view of the examples of one gradient or evaluation. Does not own them.
struct BatchView {
  // [examples, features], row-major.
  absl::Span<const float> features;
  // A class or a value for each example.
  absl::Span<const float> labels;
  // 0 to max_batch. With 0 examples, the loss and all gradients are 0.
  int64_t examples = 0;
  // Together with the model's seed, these seed dropout; they must differ between the batches of the job.
  uint64_t step = 0;
  uint64_t seed = 0;
  // Factor on the gradients, but not on the loss, so that small gradients do not underflow at low precision.
  float loss_scale = 1;
  // One for each of TrainableModel::tables().
  absl::Span<const RowsView> tables = {};
};

struct BatchResult {
  // Sum of the loss over the examples.
  double loss_sum = 0;
  int64_t examples = 0;
  // Number of correctly classified examples; 0 if TrainableModel::classifies() is false.
  int64_t correct = 0;

  // Adds the result of other examples.
  BatchResult& operator+=(const BatchResult& other) {
    loss_sum += other.loss_sum;
    examples += other.examples;
    correct += other.correct;
    return *this;
  }
};

// A tensor in the memory of one of a model's devices.
struct DeviceTensor {
  NamedDevice on;
  Matrix elements;
};

// A tensor that a model learns without a gradient: the running mean or variance of a batch norm.
struct Statistic {
  std::string name;
  std::vector<float> values;
};

// Callbacks of the training loop while a batch is computed. An error ends the batch and is returned from Train.
class StepHooks {
 public:
  virtual ~StepHooks() = default;

  // Called in forward order before the layer of this group computes; its parameters must be set on return.
  virtual absl::Status BeforeForward(size_t group) = 0;
  // Called instead by a model that can compute the layer with the rows of its first parameter that have come. Returns
  // null if all are there or come together; otherwise an object that lives until the next call. BeforeForward is then
  // called after the layer has taken all rows, and returns what failed meanwhile.
  virtual ArrivingRows* ArrivingBeforeForward(size_t /*group*/) { return nullptr; }
  // Called when the loss is known, to reject one that is not finite. If TrainableModel::waits_for_loss(), no gradient
  // is computed yet; otherwise all are, and code that uses a gradient earlier must check LossSum() itself.
  virtual absl::Status AfterForward(const BatchResult& result) = 0;
  // Called in backward order when the group's gradients may be read, which may wait for the device. They are not
  // written again before its BeforeForward in the next Train has returned. After TrainableModel::DeferGradients, parts
  // of them may be missing until this returns; ComputeGradient then computes these.
  virtual absl::Status GradientReady(size_t group) = 0;
  // Called before a deferred gradient's GradientReady. Returns whether that may come after the next one's, because the
  // next forward pass needs the next one first.
  virtual bool Postpones(size_t /*group*/) { return false; }
};

// Interface of a model to the training loop, independent of the devices that compute it. It has more than 8 methods
// because no part of them would be useful alone. Thread safety: one call of Train or Evaluate at a time. Meanwhile,
// other threads may set a group's parameters from its GradientReady until its next BeforeForward returns, and read its
// gradients from GradientReady until its BeforeForward in the next Train returns.
class TrainableModel {
 public:
  virtual ~TrainableModel() = default;

  // Parameters in forward order. Their values are 0 until set.
  virtual const std::vector<Parameter>& parameters() const = 0;
  // One group for each layer with parameters that are trained, in forward order.
  virtual const std::vector<ParameterGroup>& parameter_groups() const = 0;
  // The tables of which batches bring rows, in the order of v1.Model.tables.
  virtual const std::vector<TableUse>& tables() const = 0;
  // Returns layers, loss and number of parameters, for logs.
  virtual std::string Describe() const = 0;
  // Memory of the model on its devices, plus the devices' own workspace and staging memory.
  virtual MemoryBytes Memory() const = 0;
  virtual bool classifies() const = 0;
  // True if the only output is the logit of the probability of label 1, and all labels are 0 or 1.
  virtual bool predicts_probability() const = 0;
  // Number of outputs of the last layer, which are the input of the loss.
  virtual int64_t outputs() const = 0;
  // True if backward begins only after the host has read the loss. False if a device runs concurrently with the host,
  // because the device would be idle meanwhile.
  virtual bool waits_for_loss() const = 0;
  // INVALID_ARGUMENT ("label is …, want …") for a label that the loss does not accept.
  virtual absl::Status CheckLabel(float label) const = 0;

  // Copy whole tensors. INVALID_ARGUMENT if the sizes differ.
  virtual absl::Status SetParameter(size_t index, absl::Span<const float> values) = 0;
  virtual absl::Status GetParameter(size_t index, absl::Span<float> values) = 0;
  virtual absl::Status GetGradient(size_t index, absl::Span<float> values) = 0;
  // Copies the gradient of a table's rows, [rows, dim], of the batch of the last Train. INVALID_ARGUMENT if the sizes
  // differ.
  virtual absl::Status GetRowGradients(size_t table, absl::Span<float> values) = 0;
  // Copies all statistics to the host; not during Train or Evaluate.
  virtual absl::StatusOr<std::vector<Statistic>> Statistics() = 0;
  // Same condition. NOT_FOUND if there is no such statistic, INVALID_ARGUMENT if the sizes differ.
  virtual absl::Status SetStatistic(const std::string& name, absl::Span<const float> values) = 0;
  // The tensor's memory, with the same access rules; empty if the host cannot address it or several devices hold
  // copies.
  virtual absl::Span<float> HostParameter(size_t index) = 0;
  virtual absl::Span<const float> HostGradient(size_t index) = 0;
  // The tensor on its device, for operations of the training thread with the same access rules; nullopt if several
  // devices hold copies.
  virtual std::optional<DeviceTensor> DeviceParameter(size_t index) = 0;
  virtual DeviceTensor DeviceGradient(size_t index) = 0;

  // Starts recording the layers' passes and the copies to and from the device, as the host sees them, and the passes by
  // the devices' own clocks. Null waits for the passes issued so far, adds them and stops; the timeline must stay until
  // then or until the model is destroyed.
  virtual void Record(TimelineRecorder* timeline) = 0;

  // Says whether gradients may be left to be computed while they are read; see GradientReady. Returns false if none is.
  virtual bool DeferGradients(bool /*may*/) { return false; }
  // Computes elements [begin, end) of the parameter's gradient, and perhaps others, unless they are already. Any thread
  // may call it, from the group's GradientReady until its BeforeForward in the next Train returns.
  virtual void ComputeGradient(size_t /*index*/, size_t /*begin*/, size_t /*end*/) {}

  // Runs forward, loss and backward. Gradients are those of the mean loss over the batch's examples. INVALID_ARGUMENT,
  // before any hook is called, for a batch of the wrong size or with a bad label.
  virtual absl::StatusOr<BatchResult> Train(const BatchView& batch, StepHooks& hooks) = 0;
  // Waits for the devices and returns BatchResult::loss_sum of the current or the last batch. Any thread may call it,
  // from the batch's first GradientReady until the next BeforeForward of that group returns.
  virtual absl::StatusOr<double> LossSum() = 0;
  // Runs forward and loss without dropout. Copies the outputs, [examples, outputs()], unless the span is empty.
  virtual absl::StatusOr<BatchResult> Evaluate(const BatchView& batch, absl::Span<float> outputs) = 0;
  absl::StatusOr<BatchResult> Evaluate(const BatchView& batch) { return Evaluate(batch, {}); }
};

}  // namespace ballast
