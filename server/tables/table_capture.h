// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/tables/range/range_capture.h"
#include "server/tables/range/row_layout.h"
#include "server/tables/range/table_range.h"

namespace ballast {

// Some of a table's rows, ascending by hash over ranges too. Rows that are to be removed come with the first rows of
// their range.
struct RowsPiece {
  // The range of the first row.
  uint32_t range = 0;
  // Number of ranges that end with this piece, from `range` on. Other pieces have the rest of the one after them.
  uint32_t ranges = 0;
  RowImages rows;
  // Counts of uses of each of these ranges; see UseCounts. Empty if uses are not counted.
  std::vector<std::string> uses;
};

// Owns a view of a table's ranges as they were when it began, which is read range by range while pushes go on. A push
// keeps what it changes of a range that was not read yet, so the memory that a capture takes is that of the rows that
// change meanwhile. Thread safety: none; the ranges guard themselves.
class TableCapture {
 public:
  // Ranges [first, first + ranges.size()), which must outlive this. No push may run meanwhile. `since`: empty, or the
  // follower of each range, out of which it takes the changes; then the view has only the rows that these name.
  TableCapture(uint32_t first, std::vector<TableRange*> ranges, const RowLayout& layout,
               absl::Span<RangeChanges> since = {});
  // Ends the capture of ranges that were not read.
  ~TableCapture();
  TableCapture(const TableCapture&) = delete;
  TableCapture& operator=(const TableCapture&) = delete;

  // Returns the next rows, about 1 MiB of them; nullopt at the end. Covers every range, with rows or without.
  std::optional<RowsPiece> Next();

  size_t row_bytes() const { return layout_.image_words() * sizeof(uint32_t); }
  // Rows that Next has returned.
  uint64_t rows_read() const { return rows_read_; }

 private:
  // Moves up to `most` rows from the range that is being read to the piece.
  void Move(size_t most, RowsPiece& piece);

  const uint32_t first_;
  const RowLayout layout_;
  const std::vector<TableRange*> ranges_;
  std::vector<RangeCapture> captures_;
  // Number of ranges that were read, and the rows of the last of them from `begin_` on, which no piece has yet.
  size_t read_ = 0;
  RowImages rest_;
  size_t begin_ = 0;
  // False if the last range that was read ended with a piece.
  bool open_ = false;
  uint64_t rows_read_ = 0;
};

}  // namespace ballast
