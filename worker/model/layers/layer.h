// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"
#include "worker/device/device.h"

namespace ballast {

// Description of a parameter, as the servers need it to hold its weights.
struct Parameter {
  // Name like "dense1/weight".
  std::string name;
  std::vector<int64_t> shape;
  v1::Initializer initializer;
  int64_t elements = 0;
};

// A parameter and its gradient of the mean loss, on the device.
struct ParameterMemory {
  std::unique_ptr<Buffer> value;
  std::unique_ptr<Buffer> gradient;
};

// A table's part in a model: the layer that uses it, and the fields of ids whose rows make its vectors.
struct TableUse {
  // Index in v1.Model.tables.
  size_t table = 0;
  int64_t dim = 0;
  // Indices of fields of ids in the data, in the order of their vectors.
  std::vector<size_t> fields;
  bool mean = false;
};

// The rows of a table that a batch uses, and their gradient of the mean loss, on the device: [rows, dim].
struct RowMemory {
  Matrix values;
  Matrix gradient;
  RowBags bags;
};

// Arguments of a layer for one batch.
struct Pass {
  Device& device;
  // The layer's parameters, in the order of Parameters().
  absl::Span<const ParameterMemory> parameters;
  // The layer's memory, in the order of Memory().
  absl::Span<const std::unique_ptr<Buffer>> memory;
  bool training = false;
  // True if Forward repeats a batch, so that state which outlives the batch must not change again.
  bool again = false;
  DropoutKey dropout;
  // Function to apply to y as well; set only if traits().fuses_activation.
  std::optional<Activation> activation;
  // Set only if traits().table.
  const RowMemory* rows = nullptr;
  // If set, rows of the first parameter's value are still to come, and the other values with the last of them: Forward
  // must take all. Only if traits().takes_arriving_rows.
  ArrivingRows* arriving = nullptr;
  // If set, Backward may leave the gradient of the first parameter to be computed by rows, after everything else.
  std::unique_ptr<RowsOfProduct>* later = nullptr;
};

// Device memory that a layer keeps from batch to batch, or from forward to backward.
struct LayerMemory {
  int64_t elements = 0;
  // True if each example of a batch needs that many elements.
  bool per_example = false;
  // Initial value of each element.
  float initial = 0;
  // Name of the tensor in a saved model; empty if the memory is not learned and not saved.
  std::string name = {};
};

// Properties that a model uses when it connects layers.
struct LayerTraits {
  // Forward may overwrite x with y. Backward then gets y as x, and dx may be dy.
  bool in_place = false;
  // Forward supports Pass::activation.
  bool fuses_activation = false;
  // Set if the layer only applies this function to each element.
  std::optional<Activation> activation;
  // Set if the layer is a convolution, for which a device reserves workspace.
  std::optional<ConvShape> convolution;
  // Forward or Backward uses Buffer::host(), so only the CPU computes the layer.
  bool on_host = false;
  // Forward supports Pass::arriving.
  bool takes_arriving_rows = false;
  // Set if the layer looks up rows of a table.
  std::optional<TableUse> table;
};

// The arithmetic of one layer, from a batch [examples, inputs] to [examples, output().elements()]. It owns no device
// memory and knows neither its neighbors nor the loss. Thread safety: immutable.
class Layer {
 public:
  virtual ~Layer() = default;

  // Returns text for logs, like "dense 512".
  virtual std::string Describe() const = 0;
  // Shape of the output; flat outputs are the channels of one pixel.
  virtual ImageShape output() const = 0;
  virtual LayerTraits traits() const = 0;
  virtual std::vector<Parameter> Parameters() const = 0;
  virtual std::vector<LayerMemory> Memory() const = 0;
  virtual void Forward(const Pass& pass, Matrix x, Matrix y) const = 0;
  // Computes the parameters' gradients and, if dx is not null, the input's, from the output's gradient dy. x is the
  // input of Forward for the same batch. dx does not overlap dy unless traits().in_place.
  virtual void Backward(const Pass& pass, Matrix x, Matrix dy, const Matrix* dx) const = 0;
};

}  // namespace ballast
