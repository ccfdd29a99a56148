// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/run/model_description.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device.h"
#include "worker/model/model.h"

namespace ballast {

// Owns a trained model with its device, ready to predict. It is made from the model's file alone. Thread safety: none.
struct SavedModel {
  struct Options {
    // "auto", "cpu" or "cuda".
    std::string device = "auto";
    // Compute threads of the CPU device.
    int threads = 1;
    CudaOptions cuda;
  };

  // `path` is a safetensors file, or a run directory with a model. INVALID_ARGUMENT, naming the file, if it is damaged,
  // does not describe its model, or lacks a tensor of it.
  static absl::StatusOr<SavedModel> Open(const std::string& path, const Options& options);

  // The safetensors file.
  std::string path;
  ModelDescription description;
  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
  // Most examples that the model takes in one batch.
  int64_t max_batch = 0;
};

}  // namespace ballast
