// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"
#include "worker/model/layers/layer.h"

namespace ballast {

// A layer of the job file, with its name and its input in the model.
struct LayerSite {
  const v1::Layer& config;
  std::string name;
  ImageShape input;
};

// Returns the kind's name in the job file ("dense"), with which default names begin; empty if the kind is not set.
std::string LayerKindName(const v1::Layer& config);

// INVALID_ARGUMENT, naming the layer, if the kind is not set, or the configuration is out of range or does not fit the
// inputs. `site` must not be a residual, because LayerChain splits that into several layers.
absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const LayerSite& site);

// One function for each kind, in the file named after it.
absl::StatusOr<std::unique_ptr<Layer>> MakeAveragePool(const LayerSite& site);
absl::StatusOr<std::unique_ptr<Layer>> MakeBatchNorm(const LayerSite& site);
absl::StatusOr<std::unique_ptr<Layer>> MakeConv2d(const LayerSite& site);
absl::StatusOr<std::unique_ptr<Layer>> MakeDense(const LayerSite& site);
absl::StatusOr<std::unique_ptr<Layer>> MakeDropout(const LayerSite& site);
absl::StatusOr<std::unique_ptr<Layer>> MakeGelu(const LayerSite& site);
absl::StatusOr<std::unique_ptr<Layer>> MakeLayerNorm(const LayerSite& site);
absl::StatusOr<std::unique_ptr<Layer>> MakeMaxPool(const LayerSite& site);
absl::StatusOr<std::unique_ptr<Layer>> MakeRelu(const LayerSite& site);
absl::StatusOr<std::unique_ptr<Layer>> MakeTanh(const LayerSite& site);

}  // namespace ballast
