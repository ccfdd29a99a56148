// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// Returns the probabilities that softmax gives for the outputs, in double.
std::vector<double> Softmax(absl::Span<const float> outputs);

// Writes predictions as text, one line each: CSV with a header (RFC 4180), or JSON objects. A prediction of a class is
// its name and the probability of each class; any other is a number. The class is missing if the outputs are no
// numbers. Thread safety: immutable.
class PredictionText {
 public:
  // `classes` are the names of the classes; empty if the model predicts a number.
  PredictionText(std::vector<std::string> classes, bool json);

  // Empty for JSON.
  const std::string& header() const { return header_; }
  // Appends the line of one example with these outputs of the model.
  void Append(absl::Span<const float> outputs, std::string& text) const;

 private:
  const bool json_;
  std::string header_;
  // The names of the classes, as they appear in a line.
  std::vector<std::string> names_;
};

}  // namespace ballast
