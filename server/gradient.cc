// SPDX-License-Identifier: Apache-2.0
#include "server/gradient.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "server/optimizers/instruction_set.h"

namespace ballast {
namespace {

bool IsAligned(const char* data) { return reinterpret_cast<uintptr_t>(data) % alignof(float) == 0; }

// The largest magnitude, as bits: those of infinity and NaN are the largest of all. Elements need not be aligned.
struct LargestLoop {
  const char* elements;
  size_t count;
  int32_t* largest;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    int32_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      int32_t bits;
      std::memcpy(&bits, elements + i * sizeof(bits), sizeof(bits));
      most = std::max(most, bits & 0x7fffffff);
    }
    *largest = most;
  }
};

bool AreFinite(const char* elements, size_t count) {
  static const InstructionSet set = AvailableInstructionSets().back();
  constexpr int32_t kInfinity = 0x7f800000;
  int32_t largest = 0;
  RunLoop(set, LargestLoop{elements, count, &largest});
  return largest < kInfinity;
}

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
    // The whole payload is looked at: nothing is left to fail while it is applied.
    if (absl::Status status = codec.OpenPayload(gradient.pieces_, elements).status(); !status.ok()) return status;
    return gradient;
  }
  size_t bytes = 0;
  for (absl::string_view piece : payload) bytes += piece.size();
  if (bytes == elements * sizeof(float)) return gradient;
  if (bytes % sizeof(float) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("has ", bytes, " bytes, want a multiple of 4"));
  }
  return absl::InvalidArgumentError(absl::StrCat("has ", bytes / sizeof(float), " elements, want ", elements));
}

void Gradient::ForEachBlock(absl::FunctionRef<void(size_t, absl::Span<const float>)> visit) const {
  if (codec_ == nullptr) return ForEachPlainBlock(visit);
  // Open has looked at the payload: only a bug of ours could make it fail now, and half an update must not go on.
  if (!codec_->DecodeBlocks(pieces_, elements_, visit).ok()) std::abort();
}

void Gradient::ForEachPlainBlock(absl::FunctionRef<void(size_t, absl::Span<const float>)> visit) const {
  alignas(64) float staged[kBlockElements];
  constexpr size_t kBlockBytes = sizeof(staged);
  size_t first = 0, staged_bytes = 0;
  const auto flush = [&] {
    if (staged_bytes == 0) return;
    visit(first, absl::MakeConstSpan(staged, staged_bytes / sizeof(float)));
    first += staged_bytes / sizeof(float);
    staged_bytes = 0;
  };
  for (absl::string_view piece : pieces_) {
    while (!piece.empty()) {
      const size_t whole = std::min(piece.size() / sizeof(float), kBlockElements);
      if (staged_bytes == 0 && whole > 0 && IsAligned(piece.data())) {
        visit(first, absl::MakeConstSpan(reinterpret_cast<const float*>(piece.data()), whole));
        first += whole;
        piece.remove_prefix(whole * sizeof(float));
        continue;
      }
      // Where elements can be handed out in place again, only the one that was cut is staged.
      size_t take = std::min(piece.size(), kBlockBytes - staged_bytes);
      const size_t cut = (sizeof(float) - staged_bytes % sizeof(float)) % sizeof(float);
      if (cut > 0 && cut < take && IsAligned(piece.data() + cut)) take = cut;
      std::memcpy(reinterpret_cast<char*>(staged) + staged_bytes, piece.data(), take);
      staged_bytes += take;
      piece.remove_prefix(take);
      const bool in_place_next =
          staged_bytes % sizeof(float) == 0 && piece.size() >= sizeof(float) && IsAligned(piece.data());
      if (staged_bytes == kBlockBytes || in_place_next) flush();
    }
  }
  flush();
}

bool Gradient::AllFinite() const {
  bool finite = true;
  if (codec_ != nullptr) {
    ForEachBlock([&](size_t, absl::Span<const float> block) {
      finite = finite && AreFinite(reinterpret_cast<const char*>(block.data()), block.size());
    });
    return finite;
  }
  // As ForEachPlainBlock, but for the elements that were cut nothing has to be copied.
  char cut[sizeof(float)];
  size_t cut_bytes = 0;
  for (absl::string_view piece : pieces_) {
    if (cut_bytes > 0) {
      const size_t take = std::min(piece.size(), sizeof(cut) - cut_bytes);
      std::memcpy(cut + cut_bytes, piece.data(), take);
      cut_bytes += take;
      piece.remove_prefix(take);
      if (cut_bytes < sizeof(cut)) continue;
      finite = finite && AreFinite(cut, 1);
    }
    finite = finite && AreFinite(piece.data(), piece.size() / sizeof(cut));
    cut_bytes = piece.size() % sizeof(cut);
    std::memcpy(cut, piece.data() + piece.size() - cut_bytes, cut_bytes);
  }
  return finite;
}

}  // namespace ballast
