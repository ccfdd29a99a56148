// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "ballast/v1/limits.pb.h"
#include "google/protobuf/message.h"

namespace ballast {

// Names of the kinds that a message may be, from its descriptor. A job file and the flags spell them like this.

// The names of the fields of `oneof kind`, in their order; with a parameter, of those that it may have.
std::vector<std::string> KindNames(const google::protobuf::Descriptor& type);
std::vector<std::string> KindNames(const google::protobuf::Descriptor& type, v1::ParameterKind parameter);

// True if such a parameter may have the kind of that field.
bool IsKindFor(const google::protobuf::FieldDescriptor& kind, v1::ParameterKind parameter);

// Names as a phrase: "sync, async or bounded".
std::string Phrase(const std::vector<std::string>& names);
std::string NamePhrase(const google::protobuf::OneofDescriptor& oneof);
std::string KindPhrase(const google::protobuf::Descriptor& type);

// The field that is set, and its name; null and empty if none is.
const google::protobuf::FieldDescriptor* KindField(const google::protobuf::Message& message);
std::string KindName(const google::protobuf::Message& message);

// The names of an enum's values in lower case; a value's old names are left out.
std::vector<std::string> ValueNames(const google::protobuf::EnumDescriptor& type);

}  // namespace ballast
