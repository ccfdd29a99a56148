// SPDX-License-Identifier: Apache-2.0
#include "client/error_feedback.h"

#include <algorithm>

namespace ballast {
namespace {

// Computes residual - sent; a difference that is not finite becomes 0. Free of branches, so that it is vectorized.
void Subtract(absl::Span<const float> sent, float* __restrict residual) {
  for (size_t i = 0; i < sent.size(); ++i) {
    const float lost = residual[i] - sent[i];
    residual[i] = lost - lost == 0.0f ? lost : 0.0f;
  }
}

}  // namespace

size_t ErrorFeedback::Encode(uint32_t tensor_id, uint32_t slice_index, absl::Span<const float> gradient, uint64_t seed,
                             char* out) {
  if (!codec_->wants_error_feedback()) return codec_->Encode(gradient, seed, out);
  Residual* residual = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    residual = &residuals_[{tensor_id, slice_index}];
  }
  absl::MutexLock lock(&residual->mutex);
  std::vector<float>& lost = residual->values;
  lost.resize(gradient.size(), 0.0f);
  float* __restrict meant = lost.data();
  for (size_t i = 0; i < gradient.size(); ++i) meant[i] += gradient[i];
  const size_t bytes = codec_->Encode(lost, seed, out);
  const absl::string_view payload(out, bytes);
  const absl::Status status =
      codec_->DecodeBlocks({&payload, 1}, gradient.size(),
                           [meant](size_t first, absl::Span<const float> sent) { Subtract(sent, meant + first); });
  // A codec rejects its own output only if the gradient is not finite; the shard will reject it too.
  if (!status.ok()) std::fill(lost.begin(), lost.end(), 0.0f);
  return bytes;
}

}  // namespace ballast
