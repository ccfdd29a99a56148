// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Reads and writes JSON of the run directory so that nlohmann never throws: fields are read with type checks, and
// names with any bytes are written. Keys keep their order.
namespace ballast {

// Returns one line without a newline. NaN and infinities become null, invalid UTF-8 U+FFFD; doubles round-trip
// exactly.
std::string JsonLine(const nlohmann::ordered_json& value);

// Returns whether JsonLine keeps a text as it is.
bool IsUtf8(const std::string& text);

// INVALID_ARGUMENT names the place if the text is not JSON, or says that it is nested more than 64 deep. Takes time in
// proportion to the text, whatever it holds.
absl::Status CheckJson(absl::string_view text);

// INVALID_ARGUMENT if the text is not a JSON object that CheckJson accepts. Takes time in proportion to the square of
// the number of an object's keys: for texts of others, use CheckJson and nlohmann::json::parse.
absl::StatusOr<nlohmann::ordered_json> ParseJsonObject(absl::string_view text);

// Reads a field of an object; INVALID_ARGUMENT names the key if it is missing or has another type.
absl::StatusOr<std::string> StringField(const nlohmann::ordered_json& object, const char* key);
absl::StatusOr<bool> BoolField(const nlohmann::ordered_json& object, const char* key);
// Also refuses a fraction, a negative number and a number out of range.
absl::StatusOr<int64_t> CountField(const nlohmann::ordered_json& object, const char* key);
// Returns NaN for null.
absl::StatusOr<double> NumberField(const nlohmann::ordered_json& object, const char* key);
// Returns nullopt if the field is missing or null.
absl::StatusOr<std::optional<double>> OptionalNumberField(const nlohmann::ordered_json& object, const char* key);

}  // namespace ballast
