// SPDX-License-Identifier: Apache-2.0
#include "server/tables/table_capture.h"

#include <algorithm>
#include <utility>

namespace ballast {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

TableCapture::TableCapture(uint32_t first, std::vector<TableRange*> ranges, const RowLayout& layout,
                           absl::Span<RangeChanges> since)
    : first_(first), layout_(layout), ranges_(std::move(ranges)), captures_(ranges_.size()) {
  for (size_t i = 0; i < ranges_.size(); ++i) {
    ranges_[i]->BeginCapture(&captures_[i], since.empty() ? nullptr : &since[i]);
  }
}

TableCapture::~TableCapture() {
  for (; read_ < ranges_.size(); ++read_) ranges_[read_]->DropCapture(&captures_[read_]);
}

void TableCapture::Move(size_t most, RowsPiece& piece) {
  const size_t words = layout_.image_words();
  const size_t count = std::min(most, rest_.hashes.size() - begin_);
  const auto hashes = rest_.hashes.begin() + begin_;
  const auto images = rest_.words.begin() + begin_ * words;
  piece.rows.hashes.insert(piece.rows.hashes.end(), hashes, hashes + count);
  piece.rows.words.insert(piece.rows.words.end(), images, images + count * words);
  begin_ += count;
}

std::optional<RowsPiece> TableCapture::Next() {
  if (!open_ && read_ == ranges_.size()) return std::nullopt;
  const size_t most = std::max<size_t>(kPieceBytes / row_bytes(), 1);
  RowsPiece piece;
  piece.range = first_ + read_ - (open_ ? 1 : 0);
  size_t uses_bytes = 0;
  while (open_ || read_ < ranges_.size()) {
    if (!open_) {
      rest_ = ranges_[read_]->EndCapture(&captures_[read_]);
      captures_[read_++] = RangeCapture();
      begin_ = 0;
      open_ = true;
      piece.rows.removed.insert(piece.rows.removed.end(), rest_.removed.begin(), rest_.removed.end());
    }
    Move(most - piece.rows.hashes.size(), piece);
    if (begin_ < rest_.hashes.size()) break;
    ++piece.ranges;
    if (rest_.uses.has_value()) {
      uses_bytes += rest_.uses->size();
      piece.uses.push_back(*std::move(rest_.uses));
    }
    open_ = false;
    const bool full = piece.rows.hashes.size() == most || piece.rows.removed.size() >= kPieceBytes / sizeof(uint64_t) ||
                      uses_bytes >= kPieceBytes;
    if (full) break;
  }
  rows_read_ += piece.rows.hashes.size();
  return piece;
}

}  // namespace ballast
