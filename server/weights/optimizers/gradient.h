// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/codecs/codec.h"
#include "common/wire/buffer_pool.h"

namespace ballast {

// One slice's gradient as a view of memory that must outlive it: pieces that may begin and end anywhere, even within
// an element, in the encoding of the message. It is decoded block by block while it is used. Thread safety:
// immutable.
class Gradient {
 public:
  // Limit on the elements of a block in ForEachBlock, small enough for a core's first-level cache.
  static constexpr size_t kBlockElements = 4096;

  Gradient() = default;
  // NOLINTNEXTLINE: a plain array is a gradient.
  Gradient(absl::Span<const float> whole);
  // INVALID_ARGUMENT, like "has 3 elements, want 4", if the payload does not have that many elements.
  static absl::StatusOr<Gradient> Open(const Codec& codec, absl::Span<const absl::string_view> payload,
                                       size_t elements);

  // The gradient whose element i is sum_weight * sum[i] + weight * last[i], which has as many elements as `sum`. It is
  // added block by block while it is used. Views `sum` as well, and the memory of `last`.
  static Gradient Sum(absl::Span<const float> sum, float sum_weight, const Gradient& last, float weight);

  // `message` has all of the payload and little else. Whoever keeps the elements, while nobody reads the message any
  // more, may take it instead of copying them.
  void set_message(BufferPool::Buffer* message) { message_ = message; }
  // That message, if the elements are floats that it has in one piece; otherwise null.
  BufferPool::Buffer* message() const { return is_plain() && pieces_.size() == 1 ? message_ : nullptr; }
  // The elements in message().
  absl::Span<const float> in_message() const { return {reinterpret_cast<const float*>(pieces_[0].data()), elements_}; }

  size_t size() const { return elements_; }
  bool empty() const { return elements_ == 0; }
  // True if the payload's floats are the elements.
  bool is_plain() const { return codec_ == nullptr && sum_.empty(); }

  // Passes all elements in order, in aligned blocks that are not empty; `first` is the index of a block's first
  // element. Copies only elements that are not aligned or not contiguous, block by block.
  void ForEachBlock(absl::FunctionRef<void(size_t first, absl::Span<const float> block)> visit) const;

  // Copies all elements. `to` may be the memory of the sum.
  void CopyTo(float* to) const;

  // True if no element is NaN or infinite.
  bool AllFinite() const;

 private:
  // The blocks of what was received, without the sum that it is added to.
  void ForEachBlockOfLast(absl::FunctionRef<void(size_t first, absl::Span<const float> block)> visit) const;
  void ForEachPlainBlock(absl::FunctionRef<void(size_t first, absl::Span<const float> block)> visit) const;
  // Adds a block of what was received to the sum; `to` gets the result.
  void AddTo(size_t first, absl::Span<const float> block, float* to) const;

  std::vector<absl::string_view> pieces_;
  size_t elements_ = 0;
  // Null for fp32, which needs no decoding.
  const Codec* codec_ = nullptr;
  BufferPool::Buffer* message_ = nullptr;
  // Sum that the gradient is added to; empty: none.
  absl::Span<const float> sum_;
  float sum_weight_ = 0, weight_ = 0;
};

}  // namespace ballast
