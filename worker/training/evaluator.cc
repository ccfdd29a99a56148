// SPDX-License-Identifier: Apache-2.0
#include "worker/training/evaluator.h"

#include <algorithm>
#include <vector>

namespace ballast {

absl::StatusOr<v1::Evaluation> Evaluator::Evaluate() {
  std::vector<uint64_t> indices;
  std::vector<float> features, labels;
  double loss = 0;
  int64_t correct = 0;
  for (uint64_t begin = 0; begin < dataset_->size(); begin += batch_size_) {
    const uint64_t examples = std::min<uint64_t>(batch_size_, dataset_->size() - begin);
    indices.resize(examples);
    for (uint64_t i = 0; i < examples; ++i) indices[i] = begin + i;
    features.resize(examples * dataset_->features());
    labels.resize(examples);
    absl::Status read = dataset_->Read(indices, absl::MakeSpan(features), absl::MakeSpan(labels));
    if (!read.ok()) return read;
    absl::StatusOr<BatchResult> result =
        model_->Evaluate({.features = features, .labels = labels, .examples = static_cast<int64_t>(examples)});
    if (!result.ok()) return result.status();
    loss += result->loss_sum;
    correct += result->correct;
  }
  v1::Evaluation evaluation;
  evaluation.set_loss(loss / dataset_->size());
  if (model_->classifies()) evaluation.set_accuracy(static_cast<double>(correct) / dataset_->size());
  return evaluation;
}

}  // namespace ballast
