// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// Memory that together is one run of bytes.
using Pieces = absl::InlinedVector<absl::string_view, 2>;

// Writes a protobuf varint behind the end of `to`.
void AppendVarint(uint64_t value, std::string& to);

// Reads the bytes of a protobuf message that lie in pieces, without putting them together. What does not parse answers
// nothing; the reader is of no use after that. Knows the wire format, no message.
// Thread safety: none.
class PieceReader {
 public:
  // The memory must outlive this.
  explicit PieceReader(absl::Span<const absl::string_view> pieces);

  bool AtEnd() const { return left_ == 0; }
  uint64_t left() const { return left_; }

  std::optional<uint64_t> Varint();

  // The next `bytes`, where they lie.
  std::optional<Pieces> Take(uint64_t bytes);

  // A field from behind its tag to its end, copied behind `to`'s end together with the tag.
  bool CopyField(uint32_t tag, std::string& to);
  bool SkipField(uint32_t tag);

 private:
  void SkipEmpty();

  absl::Span<const absl::string_view> pieces_;
  // Within the first of pieces_.
  size_t at_ = 0;
  uint64_t left_ = 0;
};

}  // namespace ballast
