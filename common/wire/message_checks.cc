// SPDX-License-Identifier: Apache-2.0
#include "common/wire/message_checks.h"

#include <cstdint>
#include <optional>
#include <string>

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

struct Fault {
  size_t offset = 0;
  std::string field;
  std::string what;
};

// Parses any proto3 string, so that protobuf alone decides what is valid UTF-8.
bool IsUtf8(absl::string_view text) {
  std::string encoded(
      1, WireFormatLite::MakeTag(v1::ErrorInfo::kReasonFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  for (size_t bytes = text.size(); true; bytes >>= 7) {
    encoded.push_back(static_cast<char>((bytes & 0x7F) | (bytes > 0x7F ? 0x80 : 0)));
    if (bytes <= 0x7F) break;
  }
  encoded.append(text.data(), text.size());
  return v1::ErrorInfo().ParseFromString(encoded);
}

// Checks the numbers of a packed field.
std::optional<Fault> FindInPacked(const FieldDescriptor& field, absl::string_view bytes, size_t base) {
  const WireFormatLite::WireType wire =
      WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  while (static_cast<size_t>(in.CurrentPosition()) < bytes.size()) {
    const size_t at = in.CurrentPosition();
    uint64_t ignored = 0;
    const bool read = wire == WireFormatLite::WIRETYPE_VARINT    ? in.ReadVarint64(&ignored)
                      : wire == WireFormatLite::WIRETYPE_FIXED64 ? in.Skip(8)
                                                                 : in.Skip(4);
    if (!read) return Fault{base + at, field.name(), "a truncated number"};
  }
  return std::nullopt;
}

// Finds the first fault in `bytes`, which start at offset `base` of the whole message.
std::optional<Fault> FindFault(const Descriptor& type, absl::string_view bytes, size_t base, int depth) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  while (static_cast<size_t>(in.CurrentPosition()) < bytes.size()) {
    const size_t at = in.CurrentPosition();
    uint64_t tag = 0;
    if (!in.ReadVarint64(&tag) || tag > UINT32_MAX || WireFormatLite::GetTagFieldNumber(tag) == 0) {
      return Fault{base + at, "", "not a field tag"};
    }
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    const FieldDescriptor* const field = type.FindFieldByNumber(number);
    const std::string name = field == nullptr ? absl::StrCat("field ", number) : field->name();
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (WireFormatLite::SkipField(&in, tag)) continue;
      return Fault{base + at, name, "a truncated value, or an unknown wire type"};
    }
    uint32_t size = 0;
    if (!in.ReadVarint32(&size)) return Fault{base + at, name, "a truncated length"};
    const size_t begin = in.CurrentPosition();
    if (size > bytes.size() - begin) {
      return Fault{
          base + at, name,
          absl::StrCat("a length of ", size, " bytes, want at most the ", bytes.size() - begin, " that are left")};
    }
    in.Skip(static_cast<int>(size));
    if (field == nullptr) continue;
    const absl::string_view content = bytes.substr(begin, size);
    std::optional<Fault> fault;
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      if (depth == kMaxMessageDepth) return Fault{base + at, name, "messages nested too deep"};
      fault = FindFault(*field->message_type(), content, base + begin, depth + 1);
      if (fault.has_value()) fault->field = fault->field.empty() ? name : absl::StrCat(name, ".", fault->field);
    } else if (field->type() == FieldDescriptor::TYPE_STRING) {
      if (!IsUtf8(content)) fault = Fault{base + begin, name, "a text that is not UTF-8"};
    } else if (field->is_packable()) {
      fault = FindInPacked(*field, content, base + begin);
    }
    if (fault.has_value()) return fault;
  }
  return std::nullopt;
}

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

absl::Status MalformedMessage(const Descriptor& type, absl::string_view bytes) {
  const Fault fault = FindFault(type, bytes, 0, 0).value_or(Fault{bytes.size(), "", "an early end"});
  return WithReason(v1::ERROR_REASON_MALFORMED_MESSAGE,
                    absl::InvalidArgumentError(absl::StrCat(
                        "got ", bytes.size(), " bytes that are not a ", type.full_name(), ": at byte ", fault.offset,
                        fault.field.empty() ? "" : ", in field ", fault.field, ": ", fault.what)),
                    {{"message", type.full_name()}, {"offset", absl::StrCat(fault.offset)}, {"field", fault.field}});
}

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
