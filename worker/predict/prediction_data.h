// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/run/model_description.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/table_schema.h"

namespace ballast {

// New data for a model.
struct PredictionData {
  std::string path;
  // Path of the labels of IDX images; empty if there are none.
  std::string labels;
  // Format as in a job file, like "csv { header: true }", or only its kind; empty: the format of the training data.
  std::string format;
  // False if examples need no labels.
  bool needs_labels = false;
};

// Opens the data and makes features of it as of the model's training data. INVALID_ARGUMENT, naming flag or file, if
// they do not fit the model.
absl::StatusOr<std::unique_ptr<Dataset>> OpenPredictionData(const PredictionData& data,
                                                            const ModelDescription& description);

// Returns the format in which files have examples like a source's: planted clicks are written in Criteo's format.
v1::DataSource TextFormat(v1::DataSource source);

// Returns the schema of the training data, if it was a table.
absl::StatusOr<std::optional<TableSchema>> TrainedSchema(const ModelDescription& description);

// Returns the schema of a table whose columns are the model's features and a label.
absl::StatusOr<TableSchema> PlainSchema(const ModelDescription& description, int64_t label_column);

// Returns the names of `outputs` classes: the texts of the training labels, or their numbers.
absl::StatusOr<std::vector<std::string>> ClassNames(const ModelDescription& description, int64_t outputs);

}  // namespace ballast
