// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/elements/element_copier.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Has a model that defers gradients compute one in host memory, as far as the client needs it.
// Thread safety: Fetch may be called from any thread while the model permits it (see TrainableModel).
class DeferredGradient : public ElementCopier {
 public:
  // The model outlives this.
  DeferredGradient(TrainableModel* model, size_t index)
      : model_(model), index_(index), gradient_(model->HostGradient(index)) {}

  // `to` may be the gradient's own memory.
  absl::Status Fetch(size_t offset, absl::Span<float> to) override;
  // INTERNAL.
  absl::Status Store(size_t offset, absl::Span<const float> from) override;

 private:
  TrainableModel* const model_;
  const size_t index_;
  const absl::Span<const float> gradient_;
};

}  // namespace ballast
