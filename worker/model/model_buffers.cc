// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model_buffers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t RoundedUp(int64_t amount, int64_t share) { return (amount + share - 1) / share; }

// Suggests batches of at most `fits` examples, which must be less than `batch`.
std::string SmallerBatch(int64_t fits, int64_t batch) {
  const int64_t pieces = RoundedUp(batch, fits);
  return absl::StrCat("training.batch_size of at most ", fits, " (", RoundedUp(batch, pieces),
                      " with accumulate_batches times ", pieces, " keeps the examples per step)");
}

}  // namespace

MemoryBytes MemoryNeeds::At(int64_t examples) const {
  const int64_t copy = activation_type == ElementType::kFp32 ? 0 : BytesOf(activation_type);
  return {.weights = weights * (kFloat + copy),
          .gradients = gradients * kFloat,
          .activations = (kept + per_example * examples) * kFloat + activations * examples * BytesOf(activation_type)};
}

int64_t MemoryNeeds::LargestBatch(int64_t bytes) const {
  const int64_t of_one = At(1).total() - At(0).total();
  return std::max<int64_t>(0, bytes - At(0).total()) / std::max<int64_t>(1, of_one);
}

std::string DescribeShortage(const MemoryNeeds& needs, absl::Span<const MemoryAlternative> alternatives, int64_t batch,
                             int64_t free) {
  std::string text = absl::StrCat("needs ", MemoryText(needs.At(batch)), "; free: ", BytesText(free), ". ");
  const int64_t fits = std::min(needs.LargestBatch(free), batch);
  // `free` was measured before the allocation failed, so another process took memory in between.
  if (fits == batch) {
    return absl::StrCat(text, "Another process took memory meanwhile; want no other process on the device");
  }
  std::vector<std::string> ways;
  if (fits > 0) ways.push_back(SmallerBatch(fits, batch));
  int64_t least = needs.At(1).total();
  std::string with;
  for (const MemoryAlternative& other : alternatives) {
    const int64_t otherwise = std::min(other.needs.LargestBatch(free), batch);
    if (otherwise == batch) {
      ways.push_back(
          absl::StrCat(other.setting, ", with which this batch needs ", BytesText(other.needs.At(batch).total())));
    } else if (otherwise > fits) {
      ways.push_back(absl::StrCat(other.setting, " and ", SmallerBatch(otherwise, batch)));
    }
    if (other.needs.At(1).total() >= least) continue;
    least = other.needs.At(1).total();
    with = absl::StrCat(" with ", other.setting);
  }
  if (!ways.empty()) return absl::StrCat(text, "Want ", absl::StrJoin(ways, "; or "));
  return absl::StrCat(text, "Not even a batch of 1 fits, which needs ", BytesText(least), with,
                      ": want a smaller model, or a device with more memory");
}

absl::StatusOr<std::unique_ptr<ModelBuffers>> ModelBuffers::Allocate(const Layout& layout) {
  std::unique_ptr<ModelBuffers> buffers(new ModelBuffers(layout));
  if (absl::Status status = buffers->AllocateAll(); !status.ok()) return status;
  return buffers;
}

MemoryNeeds ModelBuffers::Needs(size_t device, const ValuePlan& plan) const {
  MemoryNeeds needs;
  // The loss needs its totals and a label for each example.
  if (loss_device() == device) needs = {.kept = kLossTotals, .per_example = 1};
  needs.activation_type = this->device(device).activation_type();
  for (const ValuePlan::Place& place : plan.places) {
    if (place.device == device) needs.activations += place.elements;
  }
  for (const ChainNode& node : layout_.chain.nodes) {
    if (node.layer == nullptr || node.device != device) continue;
    for (const LayerMemory& memory : node.layer->Memory()) {
      (memory.per_example ? needs.per_example : needs.kept) += memory.elements;
    }
    for (const Parameter& parameter : node.layer->Parameters()) {
      needs.weights += parameter.elements;
      needs.gradients += parameter.elements;
    }
  }
  for (size_t i = 0; i < layout_.gradients.buffers.size(); ++i) {
    if (layout_.gradients.devices[i] == device) needs.activations += layout_.gradients.buffers[i];
  }
  if (!waits_for_loss_ && layout_.chain.features_device == device) needs.activations += layout_.chain.features;
  if (!waits_for_loss_ && loss_device() == device) needs.per_example += 1;
  return needs;
}

size_t ModelBuffers::DeviceOfTable(size_t table) const {
  for (const ChainNode& node : layout_.chain.nodes) {
    if (node.table == table) return node.device;
  }
  return 0;
}

absl::Status ModelBuffers::ReserveRows(size_t table, int64_t rows) {
  rows_.resize(layout_.chain.tables.size());
  ParameterMemory& memory = rows_[table];
  const int64_t floats = rows * layout_.chain.tables[table].dim;
  if (memory.value != nullptr && memory.value->size() >= floats) return absl::OkStatus();
  const size_t on = DeviceOfTable(table);
  if (absl::Status status = device(on).Synchronize(); !status.ok()) return Named(layout_.devices, on, status);
  memory = {};
  // The next batches need about as many rows, but some need more.
  const int64_t roomy = std::max<int64_t>(1, floats + floats / 4);
  for (std::unique_ptr<Buffer>* buffer : {&memory.value, &memory.gradient}) {
    absl::StatusOr<std::unique_ptr<Buffer>> made = device(on).Allocate(roomy);
    if (!made.ok()) {
      memory = {};
      return Named(layout_.devices, on, made.status());
    }
    *buffer = *std::move(made);
  }
  return absl::OkStatus();
}

std::pair<Matrix, Matrix> ModelBuffers::RowsOf(size_t table, int64_t rows) const {
  const int64_t dim = layout_.chain.tables[table].dim;
  return {{rows_[table].value.get(), rows, dim}, {rows_[table].gradient.get(), rows, dim}};
}

MemoryBytes ModelBuffers::Memory() const {
  MemoryBytes sum;
  for (size_t i = 0; i < layout_.devices.size(); ++i) {
    MemoryBytes bytes = Needs(i, layout_.values).At(layout_.max_batch);
    const DeviceMemory own = device(i).Memory();
    bytes.workspace = own.workspace;
    bytes.staging = bytes.pinned = own.pinned;
    sum += bytes;
  }
  return sum;
}

absl::Status ModelBuffers::Shortage(size_t device, int64_t free, const absl::Status& status) const {
  const MemoryNeeds needs = Needs(device, layout_.values);
  std::vector<MemoryAlternative> alternatives;
  const MemoryNeeds recomputing = Needs(device, PlanValues(layout_.chain, /*sparse=*/true));
  if (recomputing.activations < needs.activations) alternatives.push_back({"training.recompute: true", recomputing});
  if (needs.activation_type == ElementType::kFp32 && this->device(device).Takes(Precision::kBf16)) {
    alternatives.push_back({"training.precision: BF16", needs});
    alternatives.back().needs.activation_type = ElementType::kBf16;
  }
  return absl::ResourceExhaustedError(absl::StrCat(DescribeShortage(needs, alternatives, layout_.max_batch, free), " (",
                                                   Named(layout_.devices, device, status).message(), ")"));
}

absl::Status ModelBuffers::AllocateAll() {
  absl::Status status;
  std::vector<int64_t> free;
  for (const NamedDevice& each : layout_.devices) free.push_back(each.device->Memory().free);
  const auto keep = [&](size_t on, absl::StatusOr<std::unique_ptr<Buffer>> buffer) -> std::unique_ptr<Buffer> {
    if (buffer.ok()) return *std::move(buffer);
    status = absl::IsResourceExhausted(buffer.status()) ? Shortage(on, free[on], buffer.status())
                                                        : Named(layout_.devices, on, buffer.status());
    return nullptr;
  };
  const auto allocate = [&](size_t on, int64_t floats) {
    return status.ok() ? keep(on, device(on).Allocate(floats)) : nullptr;
  };
  const auto allocate_activations = [&](size_t on, int64_t elements) {
    return status.ok() ? keep(on, device(on).AllocateActivations(elements)) : nullptr;
  };
  // Runs first, because waits_for_loss_ determines the buffers to allocate.
  for (size_t i = 0; i < layout_.devices.size(); ++i) {
    const std::unique_ptr<Buffer> probe = allocate(i, 1);
    waits_for_loss_ = waits_for_loss_ && (probe == nullptr || !probe->host().empty());
  }
  const int64_t most = layout_.max_batch;
  for (const ValuePlan::Place& place : layout_.values.places) {
    // Examples with ids alone have no features.
    values_.push_back(allocate_activations(place.device, std::max<int64_t>(1, most * place.elements)));
  }
  for (const ChainNode& node : layout_.chain.nodes) {
    std::vector<std::unique_ptr<Buffer>>& own = layers_.emplace_back();
    if (node.layer == nullptr) continue;
    for (const LayerMemory& memory : node.layer->Memory()) {
      const int64_t floats = memory.elements * (memory.per_example ? most : 1);
      own.push_back(allocate(node.device, floats));
      if (status.ok()) device(node.device).Fill(memory.initial, {own.back().get(), 1, floats});
    }
  }
  for (const ChainNode& node : layout_.chain.nodes) {
    if (node.layer == nullptr) continue;
    for (const Parameter& parameter : node.layer->Parameters()) {
      ParameterMemory memory;
      memory.value = allocate(node.device, parameter.elements);
      if (status.ok()) memory.gradient = keep(node.device, device(node.device).AllocateGradient(parameter.elements));
      parameters_.push_back(std::move(memory));
    }
  }
  labels_ = allocate(loss_device(), most);
  totals_ = allocate(loss_device(), kLossTotals);
  if (!waits_for_loss_) {
    next_features_ = allocate_activations(layout_.chain.features_device,
                                          std::max<int64_t>(1, most * layout_.values.places[0].elements));
    next_labels_ = allocate(loss_device(), most);
  }
  for (size_t i = 0; i < layout_.gradients.buffers.size(); ++i) {
    gradients_.push_back(allocate_activations(layout_.gradients.devices[i], most * layout_.gradients.buffers[i]));
  }
  return status.ok() ? ReserveWorkspaces() : status;
}

absl::Status ModelBuffers::ReserveWorkspaces() {
  for (size_t i = 0; i < layout_.devices.size(); ++i) {
    std::vector<ConvShape> shapes;
    for (const ChainNode& node : layout_.chain.nodes) {
      if (node.layer == nullptr || node.device != i) continue;
      if (const LayerTraits traits = node.layer->traits(); traits.convolution.has_value()) {
        shapes.push_back(*traits.convolution);
      }
    }
    if (shapes.empty()) continue;
    const absl::Status status = device(i).ReserveWorkspace(shapes, layout_.max_batch);
    if (!status.ok()) return Named(layout_.devices, i, status);
  }
  return absl::OkStatus();
}

void ModelBuffers::NextBatch() {
  if (waits_for_loss_) return;
  std::swap(values_[0], next_features_);
  std::swap(labels_, next_labels_);
  swapped_ = !swapped_;
}

Matrix ModelBuffers::ValueOf(size_t value, int64_t examples) const {
  return {values_[layout_.values.place[value]].get(), examples, layout_.chain.ElementsOf(value)};
}

Matrix ModelBuffers::GradientOf(size_t value, size_t buffer, int64_t examples) const {
  return {gradients_[buffer].get(), examples, layout_.chain.ElementsOf(value)};
}

}  // namespace ballast
