// SPDX-License-Identifier: Apache-2.0
#include "common/text/json_fields.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

absl::Status WrongField(const Json& object, const char* key, absl::string_view want) {
  const auto it = object.find(key);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\" is ", it == object.end() ? "missing" : JsonLine(*it).substr(0, 60), ", want ", want));
}

}  // namespace

std::string JsonLine(const Json& value) {
  return value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

bool IsUtf8(const std::string& text) {
  // nlohmann checks UTF-8 only when it parses or dumps; the text is valid if the dump round-trips unchanged.
  const Json parsed = Json::parse(JsonLine(text), nullptr, /*allow_exceptions=*/false);
  return parsed.is_string() && parsed.get_ref<const std::string&>() == text;
}

absl::StatusOr<Json> ParseJsonObject(absl::string_view text) {
  Json value = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError("not JSON");
  if (!value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("JSON ", value.type_name(), ", want an object"));
  }
  return value;
}

absl::StatusOr<std::string> StringField(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) return WrongField(object, key, "a string");
  return it->get<std::string>();
}

absl::StatusOr<bool> BoolField(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_boolean()) return WrongField(object, key, "true or false");
  return it->get<bool>();
}

absl::StatusOr<int64_t> CountField(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned() ||
      it->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return WrongField(object, key, "a count");
  }
  return it->get<int64_t>();
}

absl::StatusOr<std::optional<double>> OptionalNumberField(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return std::nullopt;
  if (!it->is_number()) return WrongField(object, key, "a number");
  return it->get<double>();
}

absl::StatusOr<double> NumberField(const Json& object, const char* key) {
  if (!object.contains(key)) return WrongField(object, key, "a number");
  absl::StatusOr<std::optional<double>> value = OptionalNumberField(object, key);
  if (!value.ok()) return value.status();
  return value->value_or(std::numeric_limits<double>::quiet_NaN());
}

}  // namespace ballast
