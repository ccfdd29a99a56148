// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// What every reader and writer of the run folder's JSON needs so that nlohmann's exceptions never
// arise: reading by checked types, writing whatever bytes a name holds. Keys keep their order.
namespace ballast {

// One line without its newline. NaN and infinities become null, invalid UTF-8 U+FFFD; doubles read
// back as they were.
std::string JsonLine(const nlohmann::ordered_json& value);

// An object; INVALID_ARGUMENT where text is anything else.
absl::StatusOr<nlohmann::ordered_json> ParseJsonObject(absl::string_view text);

// A member of an object; INVALID_ARGUMENT names the key where it is missing or of another type.
absl::StatusOr<std::string> StringField(const nlohmann::ordered_json& object, const char* key);
absl::StatusOr<bool> BoolField(const nlohmann::ordered_json& object, const char* key);
// Also refuses a fraction, a negative number and what does not fit.
absl::StatusOr<int64_t> CountField(const nlohmann::ordered_json& object, const char* key);
// null is NaN.
absl::StatusOr<double> NumberField(const nlohmann::ordered_json& object, const char* key);
// Absent where it is missing or null.
absl::StatusOr<std::optional<double>> OptionalNumberField(const nlohmann::ordered_json& object, const char* key);

}  // namespace ballast
