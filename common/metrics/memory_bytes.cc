// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/memory_bytes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/number_text.h"

namespace ballast {

MemoryBytes& MemoryBytes::operator+=(const MemoryBytes& other) {
  weights += other.weights;
  gradients += other.gradients;
  activations += other.activations;
  workspace += other.workspace;
  staging += other.staging;
  pinned += other.pinned;
  return *this;
}

std::string MemoryText(const MemoryBytes& bytes) {
  std::string text = BytesText(bytes.total());
  const char* separator = ": ";
  for (const auto& [name, amount] : {std::pair("weights", bytes.weights), std::pair("gradients", bytes.gradients),
                                     std::pair("activations", bytes.activations),
                                     std::pair("workspace", bytes.workspace), std::pair("staging", bytes.staging)}) {
    if (amount == 0) continue;
    absl::StrAppend(&text, separator, name, " ", BytesText(amount));
    separator = ", ";
  }
  if (bytes.pinned > 0) absl::StrAppend(&text, " (pinned ", BytesText(bytes.pinned), ")");
  return text;
}

}  // namespace ballast
