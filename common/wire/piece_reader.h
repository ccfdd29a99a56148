// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// Memory pieces that form one sequence of bytes.
using Pieces = absl::InlinedVector<absl::string_view, 2>;

// Appends a protobuf varint to `to`; with that many bytes of zeros at its end, which readers ignore.
void AppendVarint(uint64_t value, std::string& to, int zeros = 0);

// Reads protobuf wire format from memory pieces without concatenating them. Bytes that do not parse give nullopt or
// false; the reader must not be used after that. Does not know message types. Thread safety: none.
class PieceReader {
 public:
  // The memory must outlive this object.
  explicit PieceReader(absl::Span<const absl::string_view> pieces);

  bool AtEnd() const { return left_ == 0; }
  uint64_t left() const { return left_; }

  std::optional<uint64_t> Varint();

  // Returns the next `bytes` in place.
  std::optional<Pieces> Take(uint64_t bytes);

  // CopyField appends the tag and the rest of a field whose tag was just read to `to`.
  bool CopyField(uint32_t tag, std::string& to);
  bool SkipField(uint32_t tag);

 private:
  void SkipEmpty();

  absl::Span<const absl::string_view> pieces_;
  // Offset in the first of pieces_.
  size_t at_ = 0;
  uint64_t left_ = 0;
};

}  // namespace ballast
