// SPDX-License-Identifier: Apache-2.0
#include "common/text/json_fields.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

TEST(JsonFieldsTest, DoublesReadBackAsTheyWere) {
  for (double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 123456789.123456789}) {
    const auto object = ParseJsonObject(JsonLine({{"x", value}})).value();
    EXPECT_EQ(NumberField(object, "x").value(), value);
  }
}

TEST(JsonFieldsTest, NonFiniteNumbersAreNullAndReadBackAsNan) {
  const std::string line = JsonLine({{"x", std::numeric_limits<double>::infinity()}});
  EXPECT_EQ(line, R"({"x":null})");
  EXPECT_TRUE(std::isnan(NumberField(*ParseJsonObject(line), "x").value()));
}

TEST(JsonFieldsTest, KeepsKeysInOrderAndEscapesWhateverANameHolds) {
  EXPECT_EQ(JsonLine({{"z", "a\"\n\\"}, {"a", "\xff"}}), "{\"z\":\"a\\\"\\n\\\\\",\"a\":\"\xEF\xBF\xBD\"}");
}

TEST(JsonFieldsTest, RefusesWhatIsNoObject) {
  EXPECT_FALSE(ParseJsonObject("").ok());
  EXPECT_FALSE(ParseJsonObject("{\"a\":").ok());
  EXPECT_FALSE(ParseJsonObject("[1]").ok());
}

TEST(JsonFieldsTest, SaysWhereATextIsNotJson) {
  EXPECT_EQ(ParseJsonObject("{\"a\": 1,\n \"b\": }").status().message(),
            "not JSON: at line 2, column 7: syntax error while parsing value - unexpected '}'; expected '[', '{', or a "
            "literal");
  EXPECT_EQ(ParseJsonObject("{\"a\": 1e999}").status().message(), "not JSON: number overflow parsing '1e999'");
  EXPECT_THAT(ParseJsonObject("{\"a\": NaN}").status().message(), HasSubstr("at line 1, column 7: "));
  EXPECT_THAT(ParseJsonObject("{\"a\": \"\xff\"}").status().message(), HasSubstr("ill-formed UTF-8"));
  const absl::Status unended = ParseJsonObject("{\"" + std::string(1 << 20, 'x')).status();
  EXPECT_LT(unended.message().size(), 300) << "quotes only the beginning";
}

TEST(JsonFieldsTest, RefusesDeepNesting) {
  const auto nested = [](size_t depth) {
    return absl::StrCat("{\"a\":", std::string(depth - 1, '['), std::string(depth - 1, ']'), "}");
  };
  const auto object = ParseJsonObject(nested(64));
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(JsonLine(*object), nested(64));
  for (const size_t depth : {size_t{65}, size_t{1} << 21}) {
    EXPECT_EQ(ParseJsonObject(nested(depth)).status().message(), "JSON is nested more than 64 deep, want at most that");
  }
  EXPECT_FALSE(CheckJson(std::string(1 << 21, '[')).ok());
}

TEST(JsonFieldsTest, NamesTheKeyThatIsMissingOrOfAnotherType) {
  const Json object = {{"text", "x"}, {"minus", -1}, {"half", 0.5}};
  EXPECT_THAT(StringField(object, "name").status().message(), HasSubstr("\"name\" is missing"));
  EXPECT_THAT(NumberField(object, "name").status().message(), HasSubstr("\"name\" is missing"));
  EXPECT_THAT(NumberField(object, "text").status().message(), HasSubstr("\"text\" is \"x\", want a number"));
  EXPECT_FALSE(BoolField(object, "text").ok());
  EXPECT_FALSE(CountField(object, "minus").ok());
  EXPECT_FALSE(CountField(object, "half").ok());
  EXPECT_FALSE(OptionalNumberField(object, "text").ok());
}

TEST(JsonFieldsTest, RefusesACountAboveInt64) {
  const auto object = ParseJsonObject(R"({"a":9223372036854775807,"b":9223372036854775808})").value();
  EXPECT_EQ(CountField(object, "a").value(), 9223372036854775807);
  EXPECT_FALSE(CountField(object, "b").ok());
}

}  // namespace
}  // namespace ballast
