// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/table.pb.h"
#include "common/run/model_description.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/row_indexer.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/rows/saved_rows.h"

namespace ballast {

// Owns a model with its device, ready to predict. It is made from the model's files alone. Thread safety: none.
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
  // A model with tables also needs the folder `tables` beside its file, with the rows.
  static absl::StatusOr<SavedModel> Open(const std::string& path, const Options& options);

  // Makes a model whose dense tensors are 0 and whose tables, with these specs, have no rows.
  static absl::StatusOr<SavedModel> Make(ModelDescription description, absl::Span<const v1::TableSpec> tables,
                                         const Options& options);

  // Computes the outputs, [examples, outputs()], without dropout, from features, [examples, features], and from bags of
  // ids if the model has tables. INVALID_ARGUMENT if the sizes do not fit.
  absl::Status Predict(absl::Span<const float> features, const IdBags& ids, absl::Span<float> outputs);

  // The safetensors file; empty for Make.
  std::string path;
  ModelDescription description;
  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
  // Null without tables.
  std::unique_ptr<SavedRows> rows;
  // Finds the rows of a batch.
  std::optional<RowIndexer> indexer;
  // Most examples that the model takes in one batch.
  int64_t max_batch = 0;
};

}  // namespace ballast
