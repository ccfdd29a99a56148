// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// One slice's gradient where it came to lie: fp32, in pieces of memory that may begin and end anywhere, even within an
// element. Views only: the memory outlives it. Knows nothing of how it travelled.
// Thread safety: immutable.
class Gradient {
 public:
  // Elements of the largest block that ForEachBlock hands out: small enough to stay in a core's first cache.
  static constexpr size_t kBlockElements = 4096;

  Gradient() = default;
  // NOLINTNEXTLINE: a plain array is a gradient.
  Gradient(absl::Span<const float> whole);
  // Together a whole number of elements.
  explicit Gradient(absl::Span<const absl::string_view> pieces);

  size_t size() const { return elements_; }
  bool empty() const { return elements_ == 0; }

  // Hands out all elements in order, in aligned blocks that are not empty; `first` is the index of a block's first
  // element. What does not lie aligned and whole is copied, block by block.
  void ForEachBlock(absl::FunctionRef<void(size_t first, absl::Span<const float> block)> visit) const;

  // Whether no element is NaN or infinity.
  bool AllFinite() const;

 private:
  absl::InlinedVector<absl::string_view, 1> pieces_;
  size_t elements_ = 0;
};

}  // namespace ballast
