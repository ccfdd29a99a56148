// SPDX-License-Identifier: Apache-2.0
#include "common/job/kind_names.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"

namespace ballast {
namespace {

std::vector<std::string> NamesOf(const google::protobuf::OneofDescriptor& oneof) {
  std::vector<std::string> names;
  for (int i = 0; i < oneof.field_count(); ++i) names.push_back(oneof.field(i)->name());
  return names;
}

}  // namespace

std::vector<std::string> KindNames(const google::protobuf::Descriptor& type) {
  const google::protobuf::OneofDescriptor* const kinds = type.FindOneofByName("kind");
  return NamesOf(*kinds);
}

std::vector<std::string> KindNames(const google::protobuf::Descriptor& type, v1::ParameterKind parameter) {
  const google::protobuf::OneofDescriptor* const kinds = type.FindOneofByName("kind");
  std::vector<std::string> names;
  for (int i = 0; i < kinds->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const kind = kinds->field(i);
    if (IsKindFor(*kind, parameter)) names.push_back(kind->name());
  }
  return names;
}

bool IsKindFor(const google::protobuf::FieldDescriptor& kind, v1::ParameterKind parameter) {
  const v1::ParameterKind only = kind.options().GetExtension(v1::only_for);
  return only == v1::PARAMETER_KIND_UNSPECIFIED || only == parameter;
}

std::string Phrase(const std::vector<std::string>& names) {
  std::string phrase;
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&phrase, i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
  }
  return phrase;
}

std::string NamePhrase(const google::protobuf::OneofDescriptor& oneof) { return Phrase(NamesOf(oneof)); }

std::string KindPhrase(const google::protobuf::Descriptor& type) { return Phrase(KindNames(type)); }

const google::protobuf::FieldDescriptor* KindField(const google::protobuf::Message& message) {
  return message.GetReflection()->GetOneofFieldDescriptor(message, message.GetDescriptor()->FindOneofByName("kind"));
}

std::string KindName(const google::protobuf::Message& message) {
  const google::protobuf::FieldDescriptor* const field = KindField(message);
  return field == nullptr ? "" : field->name();
}

std::vector<std::string> ValueNames(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    const google::protobuf::EnumValueDescriptor* const value = type.value(i);
    if (type.FindValueByNumber(value->number()) != value) continue;
    names.push_back(absl::AsciiStrToLower(value->name()));
  }
  return names;
}

}  // namespace ballast
