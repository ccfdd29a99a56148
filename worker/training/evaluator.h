// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "worker/data/datasets/dataset.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Evaluates a model on a whole data set, in order and without dropout. Thread safety: none.
class Evaluator {
 public:
  // Both must outlive this; the model takes batches of `batch_size`.
  Evaluator(const Dataset* dataset, TrainableModel* model, int64_t batch_size)
      : dataset_(dataset), model_(model), batch_size_(batch_size) {}

  // Sets the mean loss, and the accuracy if the model classifies.
  absl::StatusOr<v1::Evaluation> Evaluate();

 private:
  const Dataset* const dataset_;
  TrainableModel* const model_;
  const int64_t batch_size_;
};

}  // namespace ballast
