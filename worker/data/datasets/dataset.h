// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/table_schema.h"

namespace ballast {

// A label and its location ("train.csv:17"), for error messages.
struct PlacedLabel {
  float label = 0;
  std::string where;
};

// Ids of categories, in bags: each example has one bag for each field of ids.
struct IdBags {
  // Example by example, field by field.
  std::vector<uint64_t> ids;
  // End of each bag in `ids`, [examples, fields], row-major. A bag begins at the end of the one before, and may be
  // empty.
  std::vector<uint32_t> ends;
};

// Examples that can be read in any order: rows of features and bags of ids, each with a label. Knows nothing of epochs,
// shuffling or batches. Thread safety: thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of examples, at least 1 unless DatasetOptions::may_be_empty.
  virtual uint64_t size() const = 0;
  // Number of features of each example. May be 0 if there are fields of ids.
  virtual uint64_t features() const = 0;
  // Names of the fields of ids, which are unique; empty if the examples have only features.
  virtual absl::Span<const std::string> id_fields() const { return {}; }

  // The schema of a table; null for other formats. Its `classes` name the labels.
  virtual const TableSchema* schema() const { return nullptr; }
  // False if the examples have no labels; only if DatasetOptions::labels_optional.
  virtual bool has_labels() const { return true; }

  // Writes the normalized examples with these indices, row by row. `features` must have indices.size() * features()
  // elements, `labels` indices.size(). OUT_OF_RANGE for an index of size() or more, INVALID_ARGUMENT for a span of the
  // wrong size; the contents of the spans are then unspecified. A label that the file lacks is NaN. Replaces the
  // contents of `ids`, unless it is null.
  virtual absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels,
                            IdBags* ids) const = 0;
  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels) const {
    return Read(indices, features, labels, nullptr);
  }

  // Returns the first label that is not a whole number, if any, the lowest and the highest label, as found when the
  // data was opened. A loss that accepts these accepts every label.
  virtual std::vector<PlacedLabel> ExtremeLabels() const = 0;

  // The area under the ROC curve of the probabilities from which the labels were drawn, if they are known: no model
  // predicts the labels better. May take seconds.
  virtual std::optional<double> BayesAuc() const { return std::nullopt; }
};

// Replaces `ids` by empty bags: what Read gives for data without fields of ids.
inline void ClearBags(IdBags* ids) {
  if (ids == nullptr) return;
  ids->ids.clear();
  ids->ends.clear();
}

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
  // rows of LIBSVM, LIBFFM and Criteo's format no label.
  bool labels_optional = false;
  // Set: the text to read in place of the file at the source's path, which then only names it in errors. For formats of
  // text, and only during the call.
  std::optional<absl::string_view> content;
  // With content: the number of lines before it, for errors that name a line, and whether it may have no rows. The
  // data set then has none.
  uint64_t lines_before = 0;
  bool may_be_empty = false;
  // Examples that do not contribute to a new schema's statistics; as for HeldOutExamples.
  double test_share = 0;
  uint64_t seed = 0;
};

// Opens a data set of any format. All errors in a file surface here, not in Read; the message names the file and the
// byte or line.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSource& source, const DatasetOptions& options);

}  // namespace ballast
