// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/csv_row.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

using Texts = std::vector<std::string>;

TEST(CsvRowTest, ReadsFieldsAsRfc4180) {
  const struct {
    const char* row;
    char delimiter;
    Texts texts;
  } cases[] = {
      {"a,b", ',', {"a", "b"}},
      {"", ',', {""}},
      {",", ',', {"", ""}},
      {" a b , c", ',', {"a b", "c"}},
      {"\"a, b\",c", ',', {"a, b", "c"}},
      {" \" a \" ,c", ',', {" a ", "c"}},
      {"\"say \"\"hi\"\"\",c", ',', {"say \"hi\"", "c"}},
      {"\"\",\"\"\"\"", ',', {"", "\""}},
      {"\"two\nlines\",c", ',', {"two\nlines", "c"}},
      {"5\" pipe,\"c\"", ',', {"5\" pipe", "c"}},
      {"a\t\"b\tc\"\t", '\t', {"a", "b\tc", ""}},
      {"a  b", ' ', {"a", "", "b"}},
  };
  for (const auto& each : cases) {
    const absl::StatusOr<Texts> texts = CsvTexts(each.row, each.delimiter);
    ASSERT_TRUE(texts.ok()) << each.row << ": " << texts.status();
    EXPECT_EQ(*texts, each.texts) << each.row;
  }
}

TEST(CsvRowTest, RefusesQuotesThatDoNotMatch) {
  const std::string want = " begins with a quote, want another one at its end, and quotes inside it doubled: got ";
  EXPECT_EQ(CsvTexts("a,\"b", ',').status(),
            absl::InvalidArgumentError("column 1 (counted from 0)" + want + "\"\\\"b\""));
  EXPECT_EQ(CsvTexts("\"a\"b,c", ',').status(),
            absl::InvalidArgumentError("column 0 (counted from 0)" + want + "\"a\""));
}

TEST(CsvRowTest, EndsARowAtTheFirstNewlineOutsideQuotes) {
  const struct {
    const char* text;
    size_t end;
  } cases[] = {
      {"a,b\nc", 3},        {"\"a\n\",b\nc", 6},        {"\"a\"\"\n\",b\nc", 8},           {"a\"b\nc", 3},
      {"a, \"b\n\"\nc", 7}, {"a,b", std::string::npos}, {"a,\"b\nc\n", std::string::npos}, {"\"a\"b\nc", 4},
  };
  for (const auto& each : cases) EXPECT_EQ(CsvRowEnd(each.text, ','), each.end) << each.text;
}

TEST(CsvRowTest, KnowsMissingValues) {
  for (const char* text : {"", "?", "NA", "na", "NaN", "nan", "NULL", "null"})
    EXPECT_TRUE(IsMissingValue(text)) << text;
  for (const char* text : {"0", "-", "none", "N/A", "nah", "nul", "??"}) EXPECT_FALSE(IsMissingValue(text)) << text;
}

}  // namespace
}  // namespace ballast
