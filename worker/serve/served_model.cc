// SPDX-License-Identifier: Apache-2.0
#include "worker/serve/served_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "worker/predict/prediction_data.h"
#include "worker/predict/prediction_text.h"

namespace ballast {

namespace {

// Refuses a model with values that no server has: they would stay as they were initialized.
absl::Status CheckFollows(TrainableModel& model) {
  const absl::StatusOr<std::vector<Statistic>> statistics = model.Statistics();
  if (!statistics.ok() || statistics->empty()) return statistics.status();
  return absl::InvalidArgumentError(
      absl::StrCat("the model has \"", statistics->front().name,
                   "\", which its servers lack, want a model without batch_norm while the "
                   "job trains, or the run after its end"));
}

absl::Status CheckOutputs(absl::Span<const float> outputs, uint64_t width) {
  const auto found = std::find_if(outputs.begin(), outputs.end(), [](float x) { return !std::isfinite(x); });
  if (found == outputs.end()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("example ", (found - outputs.begin()) / width, ": the model's output is ",
                                          *found,
                                          ", want a finite number: its training has diverged, or a feature is "
                                          "too large"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedModel>> ServedModel::Create(SavedModel model, bool complete) {
  if (!complete) {
    if (absl::Status status = CheckFollows(*model.model); !status.ok()) return status;
  }
  absl::StatusOr<std::unique_ptr<ExampleReader>> reader = ExampleReader::Create(model.description);
  if (!reader.ok()) return reader.status();
  std::vector<std::string> classes;
  if (model.model->classifies()) {
    absl::StatusOr<std::vector<std::string>> names =
        ClassNames(model.description, model.model->predicts_probability() ? 2 : model.model->outputs());
    if (!names.ok()) return names.status();
    classes = *std::move(names);
  }
  return std::unique_ptr<ServedModel>(
      new ServedModel(std::move(model), *std::move(reader), std::move(classes), complete));
}

ServedModel::ServedModel(SavedModel model, std::unique_ptr<ExampleReader> reader, std::vector<std::string> classes,
                         bool complete)
    : description_(model.description),
      reader_(std::move(reader)),
      classes_(std::move(classes)),
      predicts_probability_(model.model->predicts_probability()),
      parameters_(model.model->parameters()),
      tables_(model.rows == nullptr
                  ? std::vector<LoadedTable>()
                  : std::vector<LoadedTable>(model.rows->tables().begin(), model.rows->tables().end())),
      model_(std::move(model)),
      has_parameters_(complete),
      has_rows_(complete) {
  if (complete) read_ = absl::Now();
}

absl::StatusOr<Prediction> ServedModel::Predict(const Examples& examples) {
  absl::MutexLock lock(&mutex_);
  if (!has_parameters_ || !has_rows_) {
    return absl::UnavailableError("the model has not received all its values yet; try again");
  }
  const uint64_t width = model_.model->outputs();
  const uint64_t most = std::max<uint64_t>(ExampleReader::kMaxValues / width, 1);
  if (examples.count > most) {
    return absl::InvalidArgumentError(absl::StrCat("got ", examples.count, " examples, want at most ", most,
                                                   ", because the model has ", width, " outputs for each"));
  }
  std::vector<float> outputs(examples.count * width);
  absl::Status status = model_.Predict(examples.features, examples.ids, absl::MakeSpan(outputs));
  if (status.ok()) status = CheckOutputs(outputs, width);
  if (!status.ok()) return status;
  Prediction prediction{.examples = examples.count, .outputs = width, .updates = updates_};
  prediction.values.reserve(outputs.size());
  for (uint64_t i = 0; i < examples.count; ++i) {
    const absl::Span<const float> one = absl::MakeConstSpan(outputs).subspan(i * width, width);
    if (predicts_probability_) {
      // The probability of label 1 of two classes with the logits 0 and x.
      prediction.values.push_back(1 / (1 + std::exp(-double{one[0]})));
    } else if (!classes_.empty()) {
      for (const double probability : Softmax(one)) prediction.values.push_back(probability);
    } else {
      prediction.values.insert(prediction.values.end(), one.begin(), one.end());
    }
  }
  return prediction;
}

absl::Status ServedModel::SetParameters(absl::Span<const std::vector<float>> values, absl::Time read) {
  absl::MutexLock lock(&mutex_);
  if (values.size() != parameters_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("got ", values.size(), " tensors, want ", parameters_.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (absl::Status status = model_.model->SetParameter(i, values[i]); !status.ok()) return status;
  }
  has_parameters_ = true;
  ++updates_;
  read_ = read;
  return absl::OkStatus();
}

void ServedModel::SetRowsComplete() {
  absl::MutexLock lock(&mutex_);
  has_rows_ = true;
}

ModelState ServedModel::state() const {
  ModelState state;
  for (const LoadedTable& table : tables_) state.rows += table.rows->rows();
  absl::MutexLock lock(&mutex_);
  state.ready = has_parameters_ && has_rows_;
  state.updates = updates_;
  state.read = read_;
  return state;
}

}  // namespace ballast
