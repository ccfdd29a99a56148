// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/gradient.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "common/codecs/payload_reader.h"
#include "common/simd/finite_floats.h"
#include "common/simd/instruction_set.h"
#include "common/simd/large_copy.h"

namespace ballast {
namespace {

bool IsAligned(const char* data) { return reinterpret_cast<uintptr_t>(data) % alignof(float) == 0; }

// sum[i] = sum_weight * addends[i] + weight * block[i].
struct AddLoop {
  const float* addends;
  float sum_weight;
  const float* block;
  float weight;
  float* sum;
  size_t count;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    BALLAST_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) sum[i] = sum_weight * addends[i] + weight * block[i];
  }
};

}  // namespace

Gradient::Gradient(absl::Span<const float> whole) : elements_(whole.size()) {
  if (!whole.empty()) pieces_.emplace_back(reinterpret_cast<const char*>(whole.data()), whole.size() * sizeof(float));
}

absl::StatusOr<Gradient> Gradient::Open(const Codec& codec, absl::Span<const absl::string_view> payload,
                                        size_t elements) {
  Gradient gradient;
  gradient.pieces_.assign(payload.begin(), payload.end());
  gradient.elements_ = elements;
  if (codec.encoding() != v1::ENCODING_FP32) {
    gradient.codec_ = &codec;
    // Checks the whole payload, so that nothing can fail while it is applied.
    if (absl::Status status = codec.OpenPayload(gradient.pieces_, elements).status(); !status.ok()) return status;
    return gradient;
  }
  const size_t bytes = PayloadBytes(payload);
  if (bytes == elements * sizeof(float)) return gradient;
  if (bytes % sizeof(float) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("has ", bytes, " bytes, want a multiple of 4"));
  }
  return absl::InvalidArgumentError(absl::StrCat("has ", bytes / sizeof(float), " elements, want ", elements));
}

Gradient Gradient::Sum(absl::Span<const float> sum, float sum_weight, const Gradient& last, float weight) {
  Gradient gradient = last;
  gradient.sum_ = sum;
  gradient.sum_weight_ = sum_weight;
  gradient.weight_ = weight;
  return gradient;
}

void Gradient::ForEachBlock(absl::FunctionRef<void(size_t, absl::Span<const float>)> visit) const {
  if (sum_.empty()) return ForEachBlockOfLast(visit);
  alignas(64) float summed[kBlockElements];
  ForEachBlockOfLast([&](size_t first, absl::Span<const float> block) {
    AddTo(first, block, summed);
    visit(first, absl::MakeConstSpan(summed, block.size()));
  });
}

void Gradient::AddTo(size_t first, absl::Span<const float> block, float* to) const {
  RunLoop(AddLoop{sum_.data() + first, sum_weight_, block.data(), weight_, to, block.size()});
}

void Gradient::CopyTo(float* to) const {
  if (!sum_.empty()) {
    return ForEachBlockOfLast([&](size_t first, absl::Span<const float> block) { AddTo(first, block, to + first); });
  }
  if (codec_ != nullptr) {
    return ForEachBlock(
        [&](size_t first, absl::Span<const float> block) { std::copy(block.begin(), block.end(), to + first); });
  }
  char* bytes = reinterpret_cast<char*>(to);
  for (absl::string_view piece : pieces_) {
    CopyLarge(piece, bytes);
    bytes += piece.size();
  }
}

void Gradient::ForEachBlockOfLast(absl::FunctionRef<void(size_t, absl::Span<const float>)> visit) const {
  if (codec_ == nullptr) return ForEachPlainBlock(visit);
  // Open has checked the payload, so only a bug can make this fail, and half an update must not remain.
  if (!codec_->DecodeBlocks(pieces_, elements_, visit).ok()) std::abort();
}

void Gradient::ForEachPlainBlock(absl::FunctionRef<void(size_t, absl::Span<const float>)> visit) const {
  alignas(64) float staged[kBlockElements];
  PayloadReader reader(pieces_, 0);
  for (size_t first = 0; first < elements_;) {
    const absl::string_view run = reader.Next(sizeof(float), std::min(elements_ - first, kBlockElements));
    const size_t count = run.size() / sizeof(float);
    const float* block = reinterpret_cast<const float*>(run.data());
    if (!IsAligned(run.data())) {
      std::memcpy(staged, run.data(), run.size());
      block = staged;
    }
    visit(first, absl::MakeConstSpan(block, count));
    first += count;
  }
}

bool Gradient::AllFinite() const {
  bool finite = true;
  if (!is_plain()) {
    ForEachBlock([&](size_t, absl::Span<const float> block) {
      finite = finite && AreFinite(reinterpret_cast<const char*>(block.data()), block.size());
    });
    return finite;
  }
  // Like ForEachPlainBlock, but without copies.
  PayloadReader reader(pieces_, 0);
  for (size_t left = elements_; left > 0 && finite;) {
    const absl::string_view run = reader.Next(sizeof(float), left);
    finite = AreFinite(run.data(), run.size() / sizeof(float));
    left -= run.size() / sizeof(float);
  }
  return finite;
}

}  // namespace ballast
