// SPDX-License-Identifier: Apache-2.0
#include "common/job/limits.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ballast/v1/limits.pb.h"
#include "common/job/kind_names.h"
#include "google/protobuf/descriptor.h"

namespace ballast {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;

bool IsFloat(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT || field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
}

bool IsNumber(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return true;
    default:
      return IsFloat(field);
  }
}

// "1 to 600, or nothing for 60"; "a number in [0, 1)"; "a finite number above 0".
std::string Wanted(const FieldDescriptor& field, const v1::Limits& limits) {
  // Bounds of integers are integers.
  const auto text = [&](double bound) {
    return IsFloat(field) ? absl::StrCat(bound) : absl::StrCat(static_cast<int64_t>(bound));
  };
  const bool low = limits.has_min() || limits.has_above(), high = limits.has_max() || limits.has_below();
  std::string wanted;
  if (IsFloat(field) && low && high) {
    wanted =
        absl::StrCat("a number in ", limits.has_min() ? "[" : "(", limits.has_min() ? limits.min() : limits.above(),
                     ", ", limits.has_max() ? limits.max() : limits.below(), limits.has_max() ? "]" : ")");
  } else if (limits.has_min() && limits.has_max()) {
    wanted = absl::StrCat(text(limits.min()), " to ", text(limits.max()));
  } else {
    wanted = IsFloat(field) ? "a finite number" : "a number";
    if (limits.has_min()) absl::StrAppend(&wanted, " of at least ", text(limits.min()));
    if (limits.has_above()) absl::StrAppend(&wanted, " above ", text(limits.above()));
    if (limits.has_max()) absl::StrAppend(&wanted, " of at most ", text(limits.max()));
    if (limits.has_below()) absl::StrAppend(&wanted, " below ", text(limits.below()));
    wanted = std::string(absl::StripPrefix(wanted, "a number of "));
  }
  if (!limits.zero().empty()) absl::StrAppend(&wanted, ", or nothing for ", limits.zero());
  return wanted;
}

bool Fits(double number, const v1::Limits& limits) {
  if (number == 0 && !limits.zero().empty()) return true;
  // NaN fails every comparison.
  return std::isfinite(number) && (!limits.has_min() || number >= limits.min()) &&
         (!limits.has_max() || number <= limits.max()) && (!limits.has_above() || number > limits.above()) &&
         (!limits.has_below() || number < limits.below());
}

// One message of a walk through its fields.
class Walk {
 public:
  Walk(const Message& message, const std::string& path, ValidationErrors& errors)
      : message_(message), reflection_(*message.GetReflection()), path_(path), errors_(errors) {}

  void Check() {
    const google::protobuf::Descriptor* const type = message_.GetDescriptor();
    for (int i = 0; i < type->oneof_decl_count(); ++i) CheckOneof(type->oneof_decl(i));
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* const field = type->field(i);
      CheckField(*field);
    }
  }

 private:
  void CheckOneof(const OneofDescriptor* oneof) {
    if (!oneof->options().GetExtension(v1::required) || reflection_.HasOneof(message_, oneof)) return;
    errors_.Add(path_, "nothing", NamePhrase(*oneof));
  }

  void CheckField(const FieldDescriptor& field) {
    const bool limited = field.options().HasExtension(v1::limits);
    const v1::Limits& limits = field.options().GetExtension(v1::limits);
    const int count = field.is_repeated()                        ? reflection_.FieldSize(message_, &field)
                      : reflection_.HasField(message_, &field)   ? 1
                      : field.has_presence() || !IsNumber(field) ? 0
                                                                 : 1;
    if (!limits.required().empty() && count == 0) {
      // An absent message lacks what a message without any field would lack.
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field.is_repeated()) {
        Walk(reflection_.GetMessage(message_, &field), PathOf(field), errors_).Check();
      } else {
        errors_.Add(PathOf(field), "nothing", limits.required());
      }
    }
    if (limits.max_count() > 0 && count > static_cast<int>(limits.max_count())) {
      errors_.Add(PathOf(field), absl::StrCat(count, " numbers"), absl::StrCat("at most ", limits.max_count()));
    }
    for (int i = 0; i < count; ++i) {
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        const Message& inner = field.is_repeated() ? reflection_.GetRepeatedMessage(message_, &field, i)
                                                   : reflection_.GetMessage(message_, &field);
        Walk(inner, field.is_repeated() ? absl::StrCat(PathOf(field), "[", i, "]") : PathOf(field), errors_).Check();
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM && !field.is_repeated()) {
        CheckName(field);
      } else if (limited && IsNumber(field)) {
        CheckNumber(field, i, limits);
      }
    }
  }

  void CheckName(const FieldDescriptor& field) {
    const int value = reflection_.GetEnumValue(message_, &field);
    const google::protobuf::EnumDescriptor* const type = field.enum_type();
    if (type->FindValueByNumber(value) != nullptr) return;
    std::vector<std::string> names = ValueNames(*type);
    for (std::string& name : names) absl::AsciiStrToUpper(&name);
    errors_.Add(PathOf(field), value, Phrase(names));
  }

  void CheckNumber(const FieldDescriptor& field, int index, const v1::Limits& limits) {
    using google::protobuf::Reflection;
    const auto check = [&](auto one, auto repeated) {
      const auto got =
          field.is_repeated() ? (reflection_.*repeated)(message_, &field, index) : (reflection_.*one)(message_, &field);
      if (!Fits(got, limits)) errors_.Add(PathOf(field), got, Wanted(field, limits));
    };
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return check(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return check(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
      case FieldDescriptor::CPPTYPE_UINT32:
        return check(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return check(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return check(&Reflection::GetFloat, &Reflection::GetRepeatedFloat);
      default:
        return check(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
    }
  }

  // Built for errors and inner messages alone: shards check each tensor and slice.
  std::string PathOf(const FieldDescriptor& field) const {
    return absl::StrCat(path_, path_.empty() ? "" : ".", field.name());
  }

  const Message& message_;
  const google::protobuf::Reflection& reflection_;
  const std::string path_;
  ValidationErrors& errors_;
};

void SetNumber(const FieldDescriptor* field, double number, Message* message) {
  const google::protobuf::Reflection* const reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(message, field, static_cast<uint32_t>(number));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(message, field, static_cast<int64_t>(number));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection->SetFloat(message, field, static_cast<float>(number));
    default:
      return;
  }
}

// The number that a field which is not set stands for. Words such as "what the input has" are none.
std::optional<double> Default(const FieldDescriptor& field) {
  const v1::Limits& limits = field.options().GetExtension(v1::limits);
  if (limits.has_unset()) return limits.unset();
  double number = 0;
  return absl::SimpleAtod(limits.zero(), &number) ? std::optional(number) : std::nullopt;
}

}  // namespace

void CheckLimits(const Message& message, const std::string& path, ValidationErrors& errors) {
  Walk(message, path, errors).Check();
}

absl::Status CheckLimits(const Message& message, const std::string& path) {
  ValidationErrors errors;
  CheckLimits(message, path, errors);
  return errors.First();
}

void FillNumbers(Message& message) {
  const google::protobuf::Reflection* const reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message.GetDescriptor()->field(i);
    if (field->is_repeated() || reflection->HasField(message, field)) continue;
    if (const std::optional<double> number = Default(*field)) SetNumber(field, *number, &message);
  }
  std::vector<const FieldDescriptor*> set;
  reflection->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int j = 0; j < count; ++j) {
      Message* const inner = field->is_repeated() ? reflection->MutableRepeatedMessage(&message, field, j)
                                                  : reflection->MutableMessage(&message, field);
      FillNumbers(*inner);
    }
  }
}

}  // namespace ballast
