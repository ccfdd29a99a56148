// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/codecs/codec.h"

namespace ballast {

// One slice's gradient where it came to lie: in pieces of memory that may begin and end anywhere, even within an
// element, encoded as it travelled; it is decoded while it is used, a block at a time. Views only: the memory outlives
// it. Thread safety: immutable.
class Gradient {
 public:
  // Elements of the largest block that ForEachBlock hands out: small enough to stay in a core's first cache.
  static constexpr size_t kBlockElements = 4096;

  Gradient() = default;
  // NOLINTNEXTLINE: a plain array is a gradient.
  Gradient(absl::Span<const float> whole);
  // INVALID_ARGUMENT, "has 3 elements, want 4", where the payload is not one of so many elements.
  static absl::StatusOr<Gradient> Open(const Codec& codec, absl::Span<const absl::string_view> payload,
                                       size_t elements);

  size_t size() const { return elements_; }
  bool empty() const { return elements_ == 0; }

  // Hands out all elements in order, in aligned blocks that are not empty; `first` is the index of a block's first
  // element. What does not lie aligned and whole is copied, block by block.
  void ForEachBlock(absl::FunctionRef<void(size_t first, absl::Span<const float> block)> visit) const;

  // Whether no element is NaN or infinity.
  bool AllFinite() const;

 private:
  void ForEachPlainBlock(absl::FunctionRef<void(size_t first, absl::Span<const float> block)> visit) const;

  std::vector<absl::string_view> pieces_;
  size_t elements_ = 0;
  // Null for fp32, which is used as it lies.
  const Codec* codec_ = nullptr;
};

}  // namespace ballast
