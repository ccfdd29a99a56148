// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layers/layer_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

struct LayerKind {
  v1::Layer::KindCase kind;
  const char* name;
  absl::StatusOr<std::unique_ptr<Layer>> (*make)(const LayerSite& site);
};

constexpr LayerKind kLayerKinds[] = {
    {v1::Layer::kAveragePool, "average_pool", MakeAveragePool},
    {v1::Layer::kBatchNorm, "batch_norm", MakeBatchNorm},
    {v1::Layer::kConv2D, "conv2d", MakeConv2d},
    {v1::Layer::kDense, "dense", MakeDense},
    {v1::Layer::kDropout, "dropout", MakeDropout},
    {v1::Layer::kGelu, "gelu", MakeGelu},
    {v1::Layer::kLayerNorm, "layer_norm", MakeLayerNorm},
    {v1::Layer::kMaxPool, "max_pool", MakeMaxPool},
    {v1::Layer::kRelu, "relu", MakeRelu},
    // LayerChain builds residuals.
    {v1::Layer::kResidual, "residual", nullptr},
    {v1::Layer::kTanh, "tanh", MakeTanh},
};

const LayerKind* Find(const v1::Layer& config) {
  for (const LayerKind& kind : kLayerKinds) {
    if (kind.kind == config.kind_case()) return &kind;
  }
  return nullptr;
}

}  // namespace

std::string LayerKindName(const v1::Layer& config) {
  const LayerKind* const kind = Find(config);
  return kind == nullptr ? "" : kind->name;
}

absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const LayerSite& site) {
  const LayerKind* const kind = Find(site.config);
  if (kind != nullptr && kind->make != nullptr) return kind->make(site);
  std::string known;
  for (const LayerKind& each : kLayerKinds) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", each.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("layer \"", site.name, "\": its kind is not set, want one of ", known));
}

}  // namespace ballast
