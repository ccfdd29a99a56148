// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/table_schema.h"

namespace ballast {

// A label and its location ("train.csv:17"), for error messages.
struct PlacedLabel {
  float label = 0;
  std::string where;
};

// Examples that can be read in any order: rows of features, each with a label. Knows nothing of epochs, shuffling or
// batches. Thread safety: thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of examples, at least 1.
  virtual uint64_t size() const = 0;
  // Number of features of each example, at least 1.
  virtual uint64_t features() const = 0;

  // The schema of a table; null for other formats. Its `classes` name the labels.
  virtual const TableSchema* schema() const { return nullptr; }
  // False if the examples have no labels; only if DatasetOptions::labels_optional.
  virtual bool has_labels() const { return true; }

  // Writes the normalized examples with these indices, row by row. `features` must have indices.size() * features()
  // elements, `labels` indices.size(). OUT_OF_RANGE for an index of size() or more, INVALID_ARGUMENT for a span of the
  // wrong size; the contents of the spans are then unspecified. A label that the file lacks is NaN.
  virtual absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features,
                            absl::Span<float> labels) const = 0;

  // Returns the first label that is not a whole number, if any, the lowest and the highest label, as found when the
  // data was opened. A loss that accepts these accepts every label.
  virtual std::vector<PlacedLabel> ExtremeLabels() const = 0;
};

// Checks the arguments of Read; every implementation calls it first.
absl::Status CheckRead(const Dataset& dataset, absl::Span<const uint64_t> indices, absl::Span<const float> features,
                       absl::Span<const float> labels);

// Options for making a data set of a data source.
struct DatasetOptions {
  v1::Normalization normalization;
  // Relative paths are relative to it if it is not empty.
  std::string base_folder;
  // The schema of the table from which the model was trained, which replaces `normalization` and all fields of the
  // source except path, header and delimiter. Columns are found by name if both files have a header; columns that the
  // schema lacks are ignored. Null: determined from this file. Copied.
  const TableSchema* schema = nullptr;
  // With a schema, the label column may be absent, or a label missing or unknown. IDX may have no file of labels, and
  // rows of LIBSVM no label.
  bool labels_optional = false;
  // Examples that do not contribute to a new schema's statistics; as for HeldOutExamples.
  double test_share = 0;
  uint64_t seed = 0;
};

// Opens a data set of any format. All errors in a file surface here, not in Read; the message names the file and the
// byte or line.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSource& source, const DatasetOptions& options);

}  // namespace ballast
