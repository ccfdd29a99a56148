// SPDX-License-Identifier: Apache-2.0
#include "worker/predict/prediction_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

// The shortest text that reads back as the same float. JSON has none for NaN and infinities.
void AppendNumber(float number, bool json, std::string& text) {
  if (json && !std::isfinite(number)) {
    text.append("null");
    return;
  }
  // The sign of a NaN means nothing.
  if (std::isnan(number)) number = std::numeric_limits<float>::quiet_NaN();
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
}

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace

std::vector<double> Softmax(absl::Span<const float> outputs) {
  const double largest = *std::max_element(outputs.begin(), outputs.end());
  std::vector<double> shares;
  double sum = 0;
  for (float output : outputs) sum += shares.emplace_back(std::exp(output - largest));
  for (double& share : shares) share /= sum;
  return shares;
}

PredictionText::PredictionText(std::vector<std::string> classes, bool json) : json_(json) {
  if (!json) header_ = classes.empty() ? "prediction" : "class";
  for (const std::string& name : classes) {
    if (!json) absl::StrAppend(&header_, ",", CsvField("p_" + name));
    names_.push_back(json ? JsonLine(name) : CsvField(name));
  }
  if (!json) header_.push_back('\n');
}

void PredictionText::Append(absl::Span<const float> outputs, std::string& text) const {
  if (names_.empty()) {
    text.append(json_ ? "{\"prediction\":" : "");
    AppendNumber(outputs[0], json_, text);
    text.append(json_ ? "}\n" : "\n");
    return;
  }
  const std::vector<double> probabilities = Softmax(outputs);
  const size_t best = std::max_element(outputs.begin(), outputs.end()) - outputs.begin();
  const std::string unknown = json_ ? "null" : "";
  const std::string& name = std::isnan(probabilities[best]) ? unknown : names_[best];
  absl::StrAppend(&text, json_ ? "{\"class\":" : "", name, json_ ? ",\"probabilities\":{" : "");
  for (size_t i = 0; i < probabilities.size(); ++i) {
    absl::StrAppend(&text, json_ && i == 0 ? "" : ",", json_ ? names_[i] : "", json_ ? ":" : "");
    AppendNumber(static_cast<float>(probabilities[i]), json_, text);
  }
  text.append(json_ ? "}}\n" : "\n");
}

}  // namespace ballast
