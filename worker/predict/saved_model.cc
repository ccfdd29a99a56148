// SPDX-License-Identifier: Apache-2.0
#include "worker/predict/saved_model.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/run/run_folder.h"
#include "common/run/safetensors.h"
#include "worker/device/factory/worker_devices.h"
#include "worker/model/layer_chain.h"
#include "worker/training/initial_weights.h"

namespace ballast {
namespace {

// Unless the device has too little memory.
constexpr int64_t kBatch = 256;

// Before any memory is allocated for the layers, because a damaged description may ask for any amount.
absl::Status CheckSize(const Safetensors& file, const ModelDescription& description) {
  const absl::StatusOr<LayerChain> chain = BuildLayerChain(description.model, description.features);
  if (!chain.ok()) return chain.status();
  uint64_t have = 0, want = 0;
  for (const LoadedTensor& tensor : file.tensors) have += tensor.values.size();
  for (const ChainNode& node : chain->nodes) {
    if (node.layer == nullptr) continue;
    for (const Parameter& parameter : node.layer->Parameters()) want += parameter.elements;
  }
  if (want <= have) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("has ", have, " weights, want ", want, " for its layers"));
}

absl::Status Fill(const Safetensors& file, Model& model) {
  const absl::StatusOr<LoadedNames> names = LoadTensors(file, model);
  if (!names.ok() || names->missing.empty()) return names.status();
  return absl::InvalidArgumentError(absl::StrCat("lacks \"", absl::StrJoin(names->missing, "\", \""), "\""));
}

absl::Status Load(const Safetensors& file, SavedModel& to) {
  absl::StatusOr<ModelDescription> description = ParseMetadata(file.metadata);
  if (!description.ok()) return description.status();
  to.description = *std::move(description);
  if (to.description.model.tables_size() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has ", to.description.model.tables_size(),
                     " tables, whose rows are not in this file; want a model without tables"));
  }
  if (absl::Status status = CheckSize(file, to.description); !status.ok()) return status;
  absl::Status status;
  for (to.max_batch = kBatch; to.max_batch > 0; to.max_batch /= 4) {
    absl::StatusOr<std::unique_ptr<Model>> model = Model::Create(to.description.model, to.description.features,
                                                                 /*seed=*/0, to.max_batch, to.device.get());
    if (model.ok()) {
      to.model = *std::move(model);
      return Fill(file, *to.model);
    }
    status = model.status();
    if (!absl::IsResourceExhausted(status)) break;
  }
  return status;
}

}  // namespace

absl::StatusOr<SavedModel> SavedModel::Open(const std::string& path, const Options& options) {
  std::error_code error;
  const std::string name = std::filesystem::is_directory(path, error) ? RunFolder(path).model() : path;
  const absl::StatusOr<Safetensors> file = ReadSafetensors(name);
  if (!file.ok()) return file.status();
  SavedModel saved = {.path = name};
  absl::StatusOr<std::unique_ptr<Device>> device = CreateDevice(options.device, options.threads, options.cuda);
  if (!device.ok()) return device.status();
  saved.device = *std::move(device);
  if (absl::Status status = Load(*file, saved); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
  }
  return saved;
}

}  // namespace ballast
