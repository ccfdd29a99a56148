// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/predict/saved_model.h"
#include "worker/serve/example_reader.h"

namespace ballast {

// The answer to a request.
struct Prediction {
  uint64_t examples = 0;
  // Values of each example: 1 for a probability, one for each class, or the model's outputs.
  uint64_t outputs = 0;
  // [examples, outputs], row-major: the probability of label 1, those of all classes, or the outputs.
  std::vector<double> values;
  // See ModelState::updates.
  uint64_t updates = 0;
};

// The age of a model's values.
struct ModelState {
  // False until the model has values for all its tensors and tables.
  bool ready = false;
  // Number of times that the dense tensors were replaced.
  uint64_t updates = 0;
  // When the newest values of dense tensors were read; for a model from a file, when it was opened.
  absl::Time read = absl::InfinitePast();
  // Rows of all tables.
  uint64_t rows = 0;
};

// Owns a model that predicts for many threads while its values are replaced. Predictions are computed one after the
// other; each sees the dense tensors of one update, and each row as of its newest update. Does not know where values
// come from. Thread safety: all methods may be called from any thread.
class ServedModel {
 public:
  // `complete`: the model has its values; otherwise it is not ready before SetParameters and SetRowsComplete, and
  // INVALID_ARGUMENT names a value that these do not set, such as a statistic of batch_norm.
  static absl::StatusOr<std::unique_ptr<ServedModel>> Create(SavedModel model, bool complete);

  const ModelDescription& description() const { return description_; }
  // Names of the classes, or empty if the model predicts numbers.
  const std::vector<std::string>& classes() const { return classes_; }
  // True if a prediction is the probability of label 1.
  bool predicts_probability() const { return predicts_probability_; }
  const ExampleReader& reader() const { return *reader_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // In the order of the description's tables.
  absl::Span<const LoadedTable> tables() const { return tables_; }

  // UNAVAILABLE until the model is ready. INVALID_ARGUMENT if the examples do not fit the model. INTERNAL names an
  // example for which the model computes no finite number.
  absl::StatusOr<Prediction> Predict(const Examples& examples) ABSL_LOCKS_EXCLUDED(mutex_);

  // Replaces the values of all dense tensors, which are in the order of parameters().
  absl::Status SetParameters(absl::Span<const std::vector<float>> values, absl::Time read) ABSL_LOCKS_EXCLUDED(mutex_);
  // Each range of each table was received.
  void SetRowsComplete() ABSL_LOCKS_EXCLUDED(mutex_);

  ModelState state() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ServedModel(SavedModel model, std::unique_ptr<ExampleReader> reader, std::vector<std::string> classes, bool complete);

  const ModelDescription description_;
  const std::unique_ptr<ExampleReader> reader_;
  const std::vector<std::string> classes_;
  const bool predicts_probability_;
  const std::vector<Parameter> parameters_;
  // Shared with model_, whose predictions read them.
  const std::vector<LoadedTable> tables_;

  mutable absl::Mutex mutex_;
  SavedModel model_ ABSL_GUARDED_BY(mutex_);
  bool has_parameters_ ABSL_GUARDED_BY(mutex_);
  bool has_rows_ ABSL_GUARDED_BY(mutex_);
  uint64_t updates_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time read_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace ballast
