// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ballast/v1/job.pb.h"
#include "worker/model/layers/layer.h"

namespace ballast {

// The tables of a model, and the names of the data's fields of ids.
struct IdInputs {
  google::protobuf::RepeatedPtrField<v1::EmbeddingTable> tables;
  std::vector<std::string> fields;
};

// A layer of the job file, with its name and its input in the model.
struct LayerSite {
  const v1::Layer& config;
  std::string name;
  ImageShape input;
  const IdInputs& ids;
};

// Returns the error of a layer, which begins with its name.
template <typename... Parts>
absl::Status LayerError(absl::string_view layer, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("layer \"", layer, "\": ", parts...));
}

// INVALID_ARGUMENT, naming the layer, where the kind is not set, or the configuration is out of range or does not fit
// the inputs. A residual is no layer but several: the chain takes it apart.
absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const LayerSite& site);

}  // namespace ballast
