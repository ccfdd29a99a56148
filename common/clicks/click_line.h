// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "common/clicks/click_model.h"

namespace ballast {

// Appends one line of Criteo's format: label, numbers and categories (hexadecimal), separated by tabs; a missing value
// is empty.
void AppendClickLine(const ClickRow& row, std::string& text);

}  // namespace ballast
