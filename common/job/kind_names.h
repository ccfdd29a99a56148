// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace ballast {

// Names of the kinds that a message may be, from its descriptor. A job file and the flags spell them like this.

// The names of the fields of `oneof kind`, in their order.
std::vector<std::string> KindNames(const google::protobuf::Descriptor& type);

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
