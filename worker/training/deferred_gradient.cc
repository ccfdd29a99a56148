// SPDX-License-Identifier: Apache-2.0
#include "worker/training/deferred_gradient.h"

#include "common/simd/large_copy.h"

namespace ballast {

absl::Status DeferredGradient::Fetch(size_t offset, absl::Span<float> to) {
  model_->ComputeGradient(index_, offset, offset + to.size());
  const absl::Span<const float> from = gradient_.subspan(offset, to.size());
  if (from.data() == to.data()) return absl::OkStatus();
  CopyLarge({reinterpret_cast<const char*>(from.data()), from.size() * sizeof(float)},
            reinterpret_cast<char*>(to.data()));
  return absl::OkStatus();
}

absl::Status DeferredGradient::Store(size_t, absl::Span<const float>) {
  return absl::InternalError("got values for a gradient");
}

}  // namespace ballast
