// SPDX-License-Identifier: Apache-2.0
#include "common/wire/element_count.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/wire/limits.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace ballast {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

WireFormatLite::WireType WireTypeOf(const FieldDescriptor& field) {
  return WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
}

// Adds to `count`. Returns false at the first fault, and once the limit is exceeded.
bool Count(const Descriptor& type, absl::string_view bytes, size_t limit, int depth, size_t& count) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  // Proto3 has no groups; protobuf keeps each one, with its content, as an unknown field.
  size_t open_groups = 0;
  while (static_cast<size_t>(in.CurrentPosition()) < bytes.size()) {
    const uint32_t tag = in.ReadTag();
    if (tag == 0) return false;
    const WireFormatLite::WireType wire = WireFormatLite::GetTagWireType(tag);
    const FieldDescriptor* field =
        open_groups > 0 ? nullptr : type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool packed = field != nullptr && field->is_packable() && wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (field != nullptr && !packed && wire != WireTypeOf(*field)) field = nullptr;
    const bool is_message = field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE;
    const bool creates = field == nullptr || is_message || (field->is_repeated() && !field->is_packable());
    if (creates && wire != WireFormatLite::WIRETYPE_END_GROUP && ++count > limit) return false;
    switch (wire) {
      case WireFormatLite::WIRETYPE_START_GROUP:
        ++open_groups;
        break;
      case WireFormatLite::WIRETYPE_END_GROUP:
        if (open_groups == 0) return false;
        --open_groups;
        break;
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: {
        uint32_t size = 0;
        if (!in.ReadVarint32(&size)) return false;
        const size_t begin = in.CurrentPosition();
        if (size > bytes.size() - begin) return false;
        in.Skip(static_cast<int>(size));
        if (!is_message) break;
        if (depth == kMaxMessageDepth) return false;
        if (!Count(*field->message_type(), bytes.substr(begin, size), limit, depth + 1, count)) return false;
        break;
      }
      default:
        if (!WireFormatLite::SkipField(&in, tag)) return false;
    }
  }
  return true;
}

}  // namespace

size_t CountElements(const Descriptor& type, absl::string_view bytes, size_t limit) {
  size_t count = 0;
  Count(type, bytes, limit, 0, count);
  return count;
}

absl::Status CheckElements(const Descriptor& type, absl::string_view bytes, size_t limit) {
  // Each element takes at least two bytes.
  if (bytes.size() / 2 <= limit || CountElements(type, bytes, limit) <= limit) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST,
                    absl::InvalidArgumentError(absl::StrCat("got a ", type.full_name(), " of ", bytes.size(),
                                                            " bytes with more than ", limit,
                                                            " messages and strings in it, want at most that")));
}

}  // namespace ballast
