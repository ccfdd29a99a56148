// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layer_chain.h"

#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/layers/layer_table.h"
#include "worker/model/losses/loss_table.h"

namespace ballast {
namespace {

// What a tensor may have in all; products with a batch size stay far from overflow.
constexpr int64_t kMaxFeatures = int64_t{1} << 40;

// 1234567 as 1,234,567.
std::string WithCommas(int64_t number) {
  std::string text = absl::StrCat(number);
  for (int i = static_cast<int>(text.size()) - 3; i > 0; i -= 3) text.insert(i, ",");
  return text;
}

int64_t CountParameters(const LayerChain& chain) {
  int64_t count = 0;
  for (const std::unique_ptr<Layer>& layer : chain.layers) {
    for (const Parameter& parameter : layer->Parameters()) count += parameter.elements;
  }
  return count;
}

}  // namespace

absl::StatusOr<LayerChain> BuildLayerChain(const v1::Model& model, int64_t features) {
  if (features < 1 || features > kMaxFeatures) {
    return absl::InvalidArgumentError(absl::StrCat("model: got ", features, " features, want 1 to ", kMaxFeatures));
  }
  if (model.layers().empty()) {
    return absl::InvalidArgumentError("model: got no layers, want at least 1");
  }
  LayerChain chain;
  chain.features = features;
  std::map<std::string, int> layers_of_kind;
  std::set<std::string> names;
  LossSite end{"", features};
  for (const v1::Layer& config : model.layers()) {
    std::string kind = LayerKindName(config);
    if (kind.empty()) kind = "layer";
    const int position = ++layers_of_kind[kind];
    LayerSite site{config, config.name().empty() ? absl::StrCat(kind, position) : config.name(), end.outputs};
    if (!names.insert(site.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("layer \"", site.name,
                                                     "\": an earlier layer has that name, want "
                                                     "another"));
    }
    absl::StatusOr<std::unique_ptr<Layer>> layer = MakeLayer(site);
    if (!layer.ok()) return layer.status();
    end = {site.name, (*layer)->outputs()};
    chain.layers.push_back(*std::move(layer));
  }
  absl::StatusOr<std::unique_ptr<Loss>> loss = MakeLoss(model.loss(), end);
  if (!loss.ok()) return loss.status();
  chain.loss = *std::move(loss);
  if (CountParameters(chain) == 0) {
    return absl::InvalidArgumentError(
        "model: no layer has parameters, so there is nothing to train; want at least one dense");
  }
  return chain;
}

std::string Describe(const LayerChain& chain) {
  std::string text = absl::StrCat(chain.features);
  for (const std::unique_ptr<Layer>& layer : chain.layers) {
    absl::StrAppend(&text, " -> ", layer->Describe());
  }
  absl::StrAppend(&text, " -> ", chain.loss->Describe(), ", ", WithCommas(CountParameters(chain)), " parameters");
  return text;
}

}  // namespace ballast
