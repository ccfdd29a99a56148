// SPDX-License-Identifier: Apache-2.0
#include "common/text/json_fields.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// nlohmann copies and prints values recursively, so a value that is nested deeper could end the process.
constexpr int kMaxDepth = 64;
// Length of an error of nlohmann's, which may quote a text of any length.
constexpr size_t kMaxErrorBytes = 160;

// Reads a text without making values of it, and owns the first error. Thread safety: none.
class JsonCheck : public nlohmann::json_sax<Json> {
 public:
  const absl::Status& status() const { return status_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t&) override { return true; }
  bool start_object(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // Without the name that nlohmann gives the error, as in "[json.exception.parse_error.101] parse error at …".
    absl::string_view text = error.what();
    if (const size_t end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
    absl::ConsumePrefix(&text, "parse error ");
    status_ = absl::InvalidArgumentError(
        absl::StrCat("not JSON: ", text.substr(0, kMaxErrorBytes), text.size() > kMaxErrorBytes ? "…" : ""));
    return false;
  }

 private:
  bool Enter() {
    if (++depth_ <= kMaxDepth) return true;
    status_ =
        absl::InvalidArgumentError(absl::StrCat("JSON is nested more than ", kMaxDepth, " deep, want at most that"));
    return false;
  }
  bool Leave() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  absl::Status status_;
};

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

absl::Status CheckJson(absl::string_view text) {
  JsonCheck check;
  Json::sax_parse(text.begin(), text.end(), &check);
  return check.status();
}

absl::StatusOr<Json> ParseJsonObject(absl::string_view text) {
  if (absl::Status status = CheckJson(text); !status.ok()) return status;
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
