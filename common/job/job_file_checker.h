// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ballast {

// A fault in a text file. Line and column count from 1; a tab is one column up to the next multiple
// of 8.
struct TextError {
  int line = 0;
  int column = 0;
  std::string message;
};

// Finds every misspelt field and every value of the wrong type in a message in protobuf's text
// format, where protobuf's own parser stops at the first and points past it. `root` is what
// messages call the outermost one. Leaves bad syntax, repeated fields and numbers out of range to
// protobuf's parser: on bad syntax it returns what it found before.
std::vector<TextError> CheckMessageText(absl::string_view text, const google::protobuf::Descriptor& type,
                                        absl::string_view root);

}  // namespace ballast
