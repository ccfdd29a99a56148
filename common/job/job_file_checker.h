// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// A fault in a text file. Line and column count from 1; a tab advances to the next multiple of 8.
struct TextError {
  int line = 0;
  int column = 0;
  std::string message;
};

// Finds every misspelled field and every value of the wrong type in a message in protobuf's text format; protobuf's
// own parser stops at the first one and points past it. If the text ends inside a message, that is the only error, and
// it says where the message was opened. `root` names the outermost message in errors; `path`, if not empty, is the path
// of that message, with which errors name its fields. Leaves other invalid syntax, repeated fields and numbers out of
// range to protobuf's parser: at invalid syntax it returns the errors found so far.
std::vector<TextError> CheckMessageText(absl::string_view text, const google::protobuf::Descriptor& type,
                                        absl::string_view root, absl::string_view path = "");

// Parses a message in protobuf's text format. INVALID_ARGUMENT lists up to five faults, one per line, in the order of
// the text: "fashion.textproto:12:3: model.layers.dense has no field "unit"; did you mean "units"?". `name` is the
// text's name in messages, `root` that of the outermost message. Records where the text sets each field, unless
// `places` is null.
absl::Status ParseMessageText(absl::string_view text, absl::string_view name, absl::string_view root,
                              google::protobuf::Message* message,
                              google::protobuf::TextFormat::ParseInfoTree* places = nullptr);

// Returns the present name of the field that had that name once; empty if none had.
std::string NewFieldName(const google::protobuf::Descriptor& type, absl::string_view old_name);

// Returns "a quoted string", "a whole number": what a value of the field must be.
std::string WantedValue(const google::protobuf::FieldDescriptor& field);

}  // namespace ballast
