// SPDX-License-Identifier: Apache-2.0
#include "common/wire/piece_reader.h"

#include <algorithm>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace ballast {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

void AppendVarint(uint64_t value, std::string& to, int zeros) {
  uint8_t bytes[10];
  const uint8_t* end = CodedOutputStream::WriteVarint64ToArray(value, bytes);
  to.append(reinterpret_cast<const char*>(bytes), end - bytes);
  constexpr char kMoreFollows = static_cast<char>(0x80);
  for (; zeros > 0; --zeros) {
    to.back() |= kMoreFollows;
    to.push_back(0);
  }
}

PieceReader::PieceReader(absl::Span<const absl::string_view> pieces) : pieces_(pieces) {
  for (absl::string_view piece : pieces) left_ += piece.size();
  SkipEmpty();
}

void PieceReader::SkipEmpty() {
  while (!pieces_.empty() && at_ == pieces_.front().size()) {
    pieces_.remove_prefix(1);
    at_ = 0;
  }
}

std::optional<uint64_t> PieceReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (left_ == 0) return std::nullopt;
    const uint64_t byte = static_cast<uint8_t>(pieces_.front()[at_]);
    ++at_;
    --left_;
    SkipEmpty();
    if (shift == 63 && byte > 1) return std::nullopt;
    value |= (byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  return std::nullopt;
}

std::optional<Pieces> PieceReader::Take(uint64_t bytes) {
  if (bytes > left_) return std::nullopt;
  Pieces taken;
  while (bytes > 0) {
    const absl::string_view piece = pieces_.front().substr(at_, bytes);
    taken.push_back(piece);
    at_ += piece.size();
    left_ -= piece.size();
    bytes -= piece.size();
    SkipEmpty();
  }
  return taken;
}

bool PieceReader::CopyField(uint32_t tag, std::string& to) {
  AppendVarint(tag, to);
  uint64_t bytes = 0;
  switch (WireFormatLite::GetTagWireType(tag)) {
    case WireFormatLite::WIRETYPE_VARINT: {
      const std::optional<uint64_t> value = Varint();
      if (!value.has_value()) return false;
      AppendVarint(*value, to);
      return true;
    }
    case WireFormatLite::WIRETYPE_FIXED64:
      bytes = 8;
      break;
    case WireFormatLite::WIRETYPE_FIXED32:
      bytes = 4;
      break;
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: {
      const std::optional<uint64_t> length = Varint();
      if (!length.has_value()) return false;
      AppendVarint(*length, to);
      bytes = *length;
      break;
    }
    default:
      // Groups, which proto3 does not have, and invalid wire types.
      return false;
  }
  const std::optional<Pieces> content = Take(bytes);
  if (!content.has_value()) return false;
  for (absl::string_view piece : *content) to.append(piece.data(), piece.size());
  return true;
}

bool PieceReader::SkipField(uint32_t tag) {
  switch (WireFormatLite::GetTagWireType(tag)) {
    case WireFormatLite::WIRETYPE_VARINT:
      return Varint().has_value();
    case WireFormatLite::WIRETYPE_FIXED64:
      return Take(8).has_value();
    case WireFormatLite::WIRETYPE_FIXED32:
      return Take(4).has_value();
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: {
      const std::optional<uint64_t> length = Varint();
      return length.has_value() && Take(*length).has_value();
    }
    default:
      return false;
  }
}

}  // namespace ballast
