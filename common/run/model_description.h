// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"

namespace ballast {

// The description of a model in the metadata of its file, with which the file alone suffices to predict. A value type.
struct ModelDescription {
  // Every layer has a name, and none a device.
  v1::Model model;
  int64_t features = 0;
  // Format of the training data; its paths are empty.
  v1::DataSource source;
  v1::Normalization normalization;
  // JSON of the columns of a table, as the worker's TableSchema writes it; empty if the data was no table.
  std::string table;
  // Names of the data's fields of ids, in their order.
  std::vector<std::string> id_fields;
  // Name of the job.
  std::string job;
};

// Returns the description of the model that a job trains.
ModelDescription DescribeModel(const v1::Job& job, int64_t features, const std::string& table,
                               absl::Span<const std::string> id_fields = {});

// Returns the metadata of the model after `step`. Messages are JSON with the names of job.proto:
//   job, step, ballast (its version): texts
//   model, source, normalization, table: JSON; missing if empty
//   id_fields: JSON list of texts; missing if empty
//   features: their number. layout: "HWC", which is their order if model.input is set
//   loss: "softmax_cross_entropy", "sigmoid_cross_entropy" or "mean_squared_error"
std::map<std::string, std::string> ToMetadata(const ModelDescription& description, uint64_t step);

// Reads such metadata, and trusts nothing in it: INVALID_ARGUMENT names the key, or the field of the model that is out
// of its range.
absl::StatusOr<ModelDescription> ParseMetadata(const std::map<std::string, std::string>& metadata);

// Writes the metadata as one JSON object: RUN/model.json. Reads it as ParseMetadata does; errors name the file.
absl::Status WriteDescription(const std::string& path, const ModelDescription& description);
absl::StatusOr<ModelDescription> ReadDescription(const std::string& path);

}  // namespace ballast
