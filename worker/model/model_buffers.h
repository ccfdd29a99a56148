// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/metrics/memory_bytes.h"
#include "worker/device/device.h"
#include "worker/device/device_types.h"
#include "worker/device/named_device.h"
#include "worker/model/buffer_plans.h"
#include "worker/model/layer_chain.h"
#include "worker/model/layers/layer.h"

namespace ballast {

// The elements that a model needs on its device: a fixed number, plus a number for each example of its largest batch.
// All are floats, except activations. A value type.
struct MemoryNeeds {
  int64_t weights = 0;
  int64_t gradients = 0;
  // The layers' own memory that does not depend on the batch.
  int64_t kept = 0;
  // Elements per example: labels and the layers' own memory; and activations with their gradients.
  int64_t per_example = 0;
  int64_t activations = 0;
  ElementType activation_type = ElementType::kFp32;

  // If activations have 16 bits, each weight also has a 16-bit copy, which is multiplied with them.
  MemoryBytes At(int64_t examples) const;
  // Returns the largest batch that fits into `bytes`; 0 if not even a batch of 1 fits.
  int64_t LargestBatch(int64_t bytes) const;
};

// A job setting that reduces memory, and the needs of the model with it.
struct MemoryAlternative {
  // Text of the job file, like "training.recompute: true".
  std::string setting;
  MemoryNeeds needs;
};

// Returns an error message for a model that does not fit into `free` bytes with batches of `batch` examples. It names
// the batch size that fits, the accumulate_batches that keeps the examples per step, and the alternatives that would
// help.
std::string DescribeShortage(const MemoryNeeds& needs, absl::Span<const MemoryAlternative> alternatives, int64_t batch,
                             int64_t free);

// Owns the device memory of a model: parameters, values, gradients, the layers' own memory, labels and loss totals. All
// are allocated once, for the largest batch. Knows neither the contents nor the order of passes. Thread safety: none,
// except that any thread may call parameters() and totals().
class ModelBuffers {
 public:
  // A model and its devices, which must all outlive the buffers.
  struct Layout {
    const LayerChain& chain;
    const ValuePlan& values;
    const GradientPlan& gradients;
    absl::Span<const NamedDevice> devices;
    int64_t max_batch = 0;
  };

  // RESOURCE_EXHAUSTED if a device has too little memory; the message names the batch sizes and settings that would
  // fit.
  static absl::StatusOr<std::unique_ptr<ModelBuffers>> Allocate(const Layout& layout);

  // See TrainableModel::Memory.
  MemoryBytes Memory() const;
  // See TrainableModel::waits_for_loss. If false, the next batch is uploaded while the current one is computed, so
  // there are two buffers each for features and labels.
  bool waits_for_loss() const { return waits_for_loss_; }
  // Makes the other buffers for features and labels the current ones, if there are others.
  void NextBatch();
  // True if NextBatch has exchanged the buffers an odd number of times.
  bool swapped() const { return swapped_; }

  // All parameters, in forward order.
  absl::Span<const ParameterMemory> parameters() const { return parameters_; }
  // The rows of a table that a batch uses, and their gradient: [rows, dim]. ReserveRows makes them large enough, and
  // waits for the device if it has to replace them. RESOURCE_EXHAUSTED if memory is short.
  absl::Status ReserveRows(size_t table, int64_t rows);
  std::pair<Matrix, Matrix> RowsOf(size_t table, int64_t rows) const;
  size_t DeviceOfTable(size_t table) const;
  // Buffers for the Memory() of a node's layer.
  absl::Span<const std::unique_ptr<Buffer>> MemoryOf(size_t node) const { return layers_[node]; }
  Matrix ValueOf(size_t value, int64_t examples) const;
  // `buffer` is an index into GradientPlan::buffers.
  Matrix GradientOf(size_t value, size_t buffer, int64_t examples) const;
  Buffer& features() const { return *values_[0]; }
  Buffer& labels() const { return *labels_; }
  Buffer& totals() const { return *totals_; }

 private:
  explicit ModelBuffers(const Layout& layout) : layout_(layout) {}
  absl::Status AllocateAll();
  // Call it last, because a device takes less workspace if less memory is left.
  absl::Status ReserveWorkspaces();
  // Returns the memory that AllocateAll would allocate on a device if values were placed by `plan`.
  MemoryNeeds Needs(size_t device, const ValuePlan& plan) const;
  // Returns the error for too little memory.
  absl::Status Shortage(size_t device, int64_t free, const absl::Status& status) const;
  size_t loss_device() const { return layout_.chain.DeviceOf(layout_.chain.nodes.size()); }
  Device& device(size_t index) const { return *layout_.devices[index].device; }

  const Layout layout_;
  bool waits_for_loss_ = true;
  std::vector<ParameterMemory> parameters_;
  // Indexed by table; null until the first batch.
  std::vector<ParameterMemory> rows_;
  // Indexed by node.
  std::vector<std::vector<std::unique_ptr<Buffer>>> layers_;
  // Indexed by the places of the value plan.
  std::vector<std::unique_ptr<Buffer>> values_;
  // Indexed by the buffers of the gradient plan.
  std::vector<std::unique_ptr<Buffer>> gradients_;
  std::unique_ptr<Buffer> labels_;
  std::unique_ptr<Buffer> totals_;
  // Null if waits_for_loss_.
  std::unique_ptr<Buffer> next_features_;
  std::unique_ptr<Buffer> next_labels_;
  bool swapped_ = false;
};

}  // namespace ballast
