// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layer_chain.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/layer_names.h"
#include "common/text/number_text.h"
#include "worker/model/layers/layer_table.h"

namespace ballast {
namespace {

using Layers = google::protobuf::RepeatedPtrField<v1::Layer>;

// Limit on the elements of a tensor, so that products with a batch size do not overflow.
constexpr int64_t kMaxFeatures = int64_t{1} << 40;
constexpr int kMaxDepth = 8;

// Counts all parameters, or only those that are not frozen.
int64_t CountParameters(const LayerChain& chain, bool all) {
  int64_t count = 0;
  for (const ChainNode& node : chain.nodes) {
    if (node.layer == nullptr || (node.frozen && !all)) continue;
    for (const Parameter& parameter : node.layer->Parameters()) count += parameter.elements;
  }
  return count;
}

// Flat values are described by their number alone.
std::string ShapeText(const ImageShape& shape) {
  return shape.pixels() == 1 ? absl::StrCat(shape.channels) : ToString(shape);
}

absl::StatusOr<ImageShape> InputShape(const v1::Model& model, int64_t features, bool has_ids) {
  const bool begins_with_ids = has_ids && !model.layers().empty() && model.layers(0).has_embedding();
  const int64_t least = begins_with_ids ? 0 : 1;
  if (features < least || features > kMaxFeatures) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: got ", features, " features, want ", least, " to ", kMaxFeatures,
                     features == 0 && has_ids ? "; for ids alone, the first layer is an embedding" : ""));
  }
  if (!model.has_input()) return ImageShape{1, 1, features};
  const ImageShape image{model.input().height(), model.input().width(),
                         model.input().channels() == 0 ? 1 : model.input().channels()};
  // Divides, because the product may overflow an int64.
  const bool positive = image.height >= 1 && image.width >= 1 && image.channels >= 1;
  if (!positive || image.height > features / image.width || image.pixels() > features / image.channels ||
      image.elements() != features) {
    return absl::InvalidArgumentError(absl::StrCat("model.input: got ", ToString(image),
                                                   ", want height x width x channels to make the data's ", features,
                                                   " features"));
  }
  return image;
}

// Returns the stride with which a convolution of kernel 1 turns `from` pixels into `to`; 0 if there is none.
int64_t ProjectionStride(int64_t from, int64_t to) {
  if (to < 1 || to > from) return 0;
  const int64_t stride = (from + to - 1) / to;
  return (from - 1) / stride + 1 == to ? stride : 0;
}

class ChainBuilder {
 public:
  // A value of the chain, and the layer that computed it.
  struct Value {
    size_t index = 0;
    ImageShape shape;
    std::string layer;
    size_t device = 0;
  };

  ChainBuilder(const v1::Model& model, const ChainInputs& inputs)
      : ids_{model.tables(), inputs.id_fields},
        devices_(inputs.devices),
        freeze_(inputs.freeze.begin(), inputs.freeze.end()),
        tables_(model.tables_size()) {}

  // Returns the device that the layer names, or `before` if it names none.
  absl::StatusOr<size_t> DeviceOf(const v1::Layer& config, const std::string& name, size_t before) const {
    if (config.device().empty()) return before;
    const auto found = std::find(devices_.begin(), devices_.end(), config.device());
    if (found != devices_.end()) return found - devices_.begin();
    return LayerError(name, "device is \"", config.device(), "\", want ",
                      devices_.empty() ? "none" : absl::StrJoin(devices_, " or "), ": this worker has no other");
  }

  // Appends the layers and their descriptions; returns the value of the last one.
  absl::StatusOr<Value> Append(const Layers& layers, Value from, int depth, std::string& text) {
    for (const v1::Layer& config : layers) {
      absl::StrAppend(&text, text.empty() ? "" : " -> ");
      absl::StatusOr<Value> to = AppendLayer(config, from, depth, text);
      if (!to.ok()) return to.status();
      from = *std::move(to);
    }
    return from;
  }

  std::vector<ChainNode> TakeNodes() { return std::move(nodes_); }
  // INVALID_ARGUMENT if a table has no layer.
  absl::StatusOr<std::vector<TableUse>> TakeTables() {
    std::vector<TableUse> uses;
    for (size_t i = 0; i < tables_.size(); ++i) {
      if (!tables_[i].has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("model.tables: no layer looks up rows of \"", ids_.tables[i].name(), "\", want an embedding"));
      }
      uses.push_back(*std::move(tables_[i]));
    }
    return uses;
  }
  // The layers to freeze that Append has not met.
  const std::set<std::string>& left_to_freeze() const { return freeze_; }

 private:
  absl::StatusOr<Value> AppendLayer(const v1::Layer& config, const Value& from, int depth, std::string& text) {
    const std::string& name = config.name();
    if (!names_.insert(name).second) return LayerError(name, "an earlier layer has that name, want another");
    const absl::StatusOr<size_t> device = DeviceOf(config, name, from.device);
    if (!device.ok()) return device.status();
    const bool recompute_around = std::exchange(recompute_, recompute_ || config.recompute());
    const bool freezes = freeze_.erase(name) > 0;
    const bool frozen_around = std::exchange(frozen_, frozen_ || freezes);
    const Value input = Carry(from, *device, name);
    absl::StatusOr<Value> value = config.has_residual() ? AppendResidual(config.residual(), name, input, depth, text)
                                                        : AppendNode({config, name, input.shape, ids_}, input, text);
    recompute_ = recompute_around;
    frozen_ = frozen_around;
    return value;
  }

  // Returns the value on `device`. If another device computed it, appends a copy, but only one per value and device.
  Value Carry(const Value& from, size_t device, const std::string& user) {
    if (from.device == device) return from;
    Value copy{nodes_.size() + 1, from.shape, from.layer, device};
    const auto [known, is_new] = copies_.try_emplace({from.index, device}, copy.index);
    copy.index = known->second;
    if (is_new) {
      nodes_.push_back({.input = from.index,
                        .outputs = from.shape.elements(),
                        .name = user + " input",
                        .device = device,
                        .carries = true});
    }
    return copy;
  }

  absl::StatusOr<Value> AppendNode(const LayerSite& site, const Value& from, std::string& text) {
    absl::StatusOr<std::unique_ptr<Layer>> layer = MakeLayer(site);
    if (!layer.ok()) return layer.status();
    absl::StrAppend(&text, (*layer)->Describe());
    const ImageShape shape = (*layer)->output();
    std::optional<size_t> table;
    if (LayerTraits traits = (*layer)->traits(); traits.table.has_value()) {
      table = traits.table->table;
      if (frozen_) return LayerError(site.name, "is frozen, want another: rows of tables always train");
      if (tables_[*table].has_value()) {
        return LayerError(site.name, "an earlier layer looks up rows of table \"", ids_.tables[*table].name(),
                          "\", want a table for each");
      }
      tables_[*table] = std::move(traits.table);
    }
    nodes_.push_back({.layer = *std::move(layer),
                      .input = from.index,
                      .outputs = shape.elements(),
                      .name = site.name,
                      .device = from.device,
                      .recompute = recompute_,
                      .frozen = frozen_,
                      .table = table});
    return Value{nodes_.size(), shape, site.name, from.device};
  }

  absl::StatusOr<Value> AppendResidual(const v1::Residual& config, const std::string& name, const Value& from,
                                       int depth, std::string& text) {
    if (depth == kMaxDepth) return LayerError(name, "is more than ", kMaxDepth, " residuals deep");
    if (config.layers().empty()) return LayerError(name, "got no layers, want at least 1");
    std::string inside;
    const absl::StatusOr<Value> end = Append(config.layers(), from, depth + 1, inside);
    if (!end.ok()) return end.status();
    absl::StrAppend(&text, "residual (", inside, ")");
    const absl::StatusOr<Value> shortcut = AppendShortcut(config, name, from, *end, depth, text);
    if (!shortcut.ok()) return shortcut.status();
    nodes_.push_back({.input = end->index,
                      .shortcut = Carry(*shortcut, end->device, name).index,
                      .outputs = end->shape.elements(),
                      .name = name,
                      .device = end->device,
                      .recompute = recompute_});
    return Value{nodes_.size(), end->shape, name, end->device};
  }

  absl::StatusOr<Value> AppendShortcut(const v1::Residual& config, const std::string& name, const Value& from,
                                       const Value& end, int depth, std::string& text) {
    if (!config.shortcut().empty()) {
      std::string inside;
      const absl::StatusOr<Value> made = Append(config.shortcut(), from, depth + 1, inside);
      if (!made.ok()) return made.status();
      absl::StrAppend(&text, " + (", inside, ")");
      if (made->shape == end.shape) return made;
      return LayerError(name, "its layers give ", ShapeText(end.shape), ", its shortcut ", ShapeText(made->shape),
                        ", want the same");
    }
    if (end.shape == from.shape) return from;
    v1::Layer projection;
    projection.mutable_conv2d()->set_filters(end.shape.channels);
    projection.mutable_conv2d()->set_no_bias(true);
    projection.mutable_conv2d()->add_kernel(1);
    projection.mutable_conv2d()->add_stride(ProjectionStride(from.shape.height, end.shape.height));
    projection.mutable_conv2d()->add_stride(ProjectionStride(from.shape.width, end.shape.width));
    if (projection.conv2d().stride(0) == 0 || projection.conv2d().stride(1) == 0) {
      return LayerError(name, "its layers give ", ToString(end.shape), " from ", ToString(from.shape),
                        ", which no stride of a convolution of kernel 1 gives; want a shortcut");
    }
    absl::StrAppend(&text, " + ");
    return AppendNode({projection, name + "/projection", from.shape, ids_}, from, text);
  }

  const IdInputs ids_;
  const absl::Span<const std::string> devices_;
  std::vector<ChainNode> nodes_;
  // Index of the copy, by the index of the original value and the device.
  std::map<std::pair<size_t, size_t>, size_t> copies_;
  // True if the current layer, or a residual around it, is to be recomputed.
  bool recompute_ = false;
  // True if the current layer, or a residual around it, keeps its parameters.
  bool frozen_ = false;
  std::set<std::string> freeze_;
  std::set<std::string> names_;
  // Use of each table, once a layer has it.
  std::vector<std::optional<TableUse>> tables_;
};

}  // namespace

absl::StatusOr<LayerChain> BuildLayerChain(v1::Model model, int64_t features, const ChainInputs& inputs) {
  const absl::StatusOr<ImageShape> input = InputShape(model, features, !inputs.id_fields.empty());
  if (!input.ok()) return input.status();
  if (model.layers().empty()) return absl::InvalidArgumentError("model: got no layers, want at least 1");
  NameLayers(model);
  ChainBuilder builder(model, inputs);
  LayerChain chain;
  chain.features = features;
  // Uploads the features directly to the first layer's device. Append reports a device that does not exist.
  chain.features_device = builder.DeviceOf(model.layers(0), "", 0).value_or(0);
  chain.layers = ShapeText(*input);
  const absl::StatusOr<ChainBuilder::Value> end =
      builder.Append(model.layers(), {0, *input, "", chain.features_device}, 0, chain.layers);
  if (!end.ok()) return end.status();
  absl::StatusOr<std::unique_ptr<Loss>> loss = MakeLoss(model.loss(), {end->layer, end->shape.elements()});
  if (!loss.ok()) return loss.status();
  chain.loss = *std::move(loss);
  chain.nodes = builder.TakeNodes();
  absl::StatusOr<std::vector<TableUse>> tables = builder.TakeTables();
  if (!tables.ok()) return tables.status();
  chain.tables = *std::move(tables);
  if (!builder.left_to_freeze().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("freeze: got \"", *builder.left_to_freeze().begin(), "\", want the name of a layer"));
  }
  if (CountParameters(chain, /*all=*/true) == 0) {
    return absl::InvalidArgumentError(
        "model: no layer has parameters, so there is nothing to train; want at least one dense or conv2d");
  }
  if (CountParameters(chain, /*all=*/false) == 0) {
    return absl::InvalidArgumentError("freeze: got all layers that have parameters, so there is nothing to train");
  }
  return chain;
}

std::string Describe(const LayerChain& chain) {
  const int64_t all = CountParameters(chain, /*all=*/true), trained = CountParameters(chain, /*all=*/false);
  return absl::StrCat(chain.layers, " -> ", chain.loss->Describe(), ", ", CountText(all), " parameters",
                      trained == all ? "" : absl::StrCat(", ", CountText(all - trained), " of them frozen"));
}

}  // namespace ballast
