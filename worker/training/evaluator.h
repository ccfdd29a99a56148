// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "worker/data/datasets/dataset.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Passes a whole data set through a model, in order and without dropout.
class Evaluator {
 public:
  // Both must outlive this; the model takes batches of `batch_size`.
  Evaluator(const Dataset* dataset, TrainableModel* model, int64_t batch_size)
      : dataset_(dataset), model_(model), batch_size_(batch_size) {}

  // Fills in loss, and accuracy where the model classifies.
  absl::StatusOr<v1::Evaluation> Evaluate();

 private:
  const Dataset* const dataset_;
  TrainableModel* const model_;
  const int64_t batch_size_;
};

}  // namespace ballast
