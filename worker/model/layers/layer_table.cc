// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layers/layer_table.h"

#include "common/job/kind_names.h"

namespace ballast {

// Each is defined in the file of its name, the functions of single elements in activation.cc.
using MakeKind = absl::StatusOr<std::unique_ptr<Layer>>(const LayerSite& site);
MakeKind MakeAveragePool, MakeBatchNorm, MakeConv2d, MakeCustom, MakeDense, MakeDotInteraction, MakeDropout,
    MakeEmbedding, MakeGelu, MakeLayerNorm, MakeMaxPool, MakeRelu, MakeTanh;

namespace {

// A residual is not here: the chain takes it apart.
constexpr struct {
  v1::Layer::KindCase kind;
  MakeKind* make;
} kLayers[] = {
    {v1::Layer::kAveragePool, MakeAveragePool},
    {v1::Layer::kBatchNorm, MakeBatchNorm},
    {v1::Layer::kConv2D, MakeConv2d},
    {v1::Layer::kCustom, MakeCustom},
    {v1::Layer::kDense, MakeDense},
    {v1::Layer::kDotInteraction, MakeDotInteraction},
    {v1::Layer::kDropout, MakeDropout},
    {v1::Layer::kEmbedding, MakeEmbedding},
    {v1::Layer::kGelu, MakeGelu},
    {v1::Layer::kLayerNorm, MakeLayerNorm},
    {v1::Layer::kMaxPool, MakeMaxPool},
    {v1::Layer::kRelu, MakeRelu},
    {v1::Layer::kTanh, MakeTanh},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const LayerSite& site) {
  for (const auto& entry : kLayers) {
    if (entry.kind == site.config.kind_case()) return entry.make(site);
  }
  return LayerError(site.name, "its kind is not set, want ", KindPhrase(*v1::Layer::descriptor()));
}

}  // namespace ballast
