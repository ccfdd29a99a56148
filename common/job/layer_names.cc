// SPDX-License-Identifier: Apache-2.0
#include "common/job/layer_names.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/job/kind_names.h"

namespace ballast {
namespace {

using Layers = google::protobuf::RepeatedPtrField<v1::Layer>;

void Visit(Layers& layers, absl::FunctionRef<void(v1::Layer&)> visit) {
  for (v1::Layer& layer : layers) {
    visit(layer);
    if (!layer.has_residual()) continue;
    Visit(*layer.mutable_residual()->mutable_layers(), visit);
    Visit(*layer.mutable_residual()->mutable_shortcut(), visit);
  }
}

}  // namespace

void ForEachLayer(v1::Model& model, absl::FunctionRef<void(v1::Layer&)> visit) {
  Visit(*model.mutable_layers(), visit);
}

void NameLayers(v1::Model& model) {
  std::map<std::string, int> layers_of_kind;
  ForEachLayer(model, [&](v1::Layer& layer) {
    std::string kind = KindName(layer);
    if (kind.empty()) kind = "layer";
    const int position = ++layers_of_kind[kind];
    if (layer.name().empty()) layer.set_name(absl::StrCat(kind, position));
  });
}

std::vector<std::string> LayerNames(v1::Model model) {
  NameLayers(model);
  std::vector<std::string> names;
  ForEachLayer(model, [&](v1::Layer& layer) { names.push_back(layer.name()); });
  return names;
}

}  // namespace ballast
