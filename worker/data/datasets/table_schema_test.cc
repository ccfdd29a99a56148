// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/table_schema.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

constexpr char kJson[] = R"({"has_names":true,"missing":"INDICATOR","classes":["no","yes, \"really\""],"columns":[)"
                         R"({"kind":"number","name":"mass","mean":0.1,"stddev":2.5,"fill":-3e-300,"indicator":true},)"
                         R"({"kind":"category","name":"island","categories":["","Ærø"]},)"
                         R"({"kind":"ignored"},{"kind":"label","name":"species"}]})";

TEST(TableSchemaTest, ComesBackFromJson) {
  const absl::StatusOr<TableSchema> schema = TableSchema::FromJson(kJson);
  ASSERT_TRUE(schema.ok()) << schema.status();
  EXPECT_EQ(schema->ToJson(), kJson);
  EXPECT_TRUE(schema->has_names);
  EXPECT_EQ(schema->missing, v1::INDICATOR);
  EXPECT_EQ(schema->classes, (std::vector<std::string>{"no", "yes, \"really\""}));
  ASSERT_EQ(schema->columns.size(), 4);
  EXPECT_EQ(schema->columns[0].name, "mass");
  EXPECT_EQ(schema->columns[0].mean, 0.1);
  EXPECT_EQ(schema->columns[0].stddev, 2.5);
  EXPECT_EQ(schema->columns[0].fill, -3e-300);
  EXPECT_EQ(schema->columns[1].categories, (std::vector<std::string>{"", "Ærø"}));
}

TEST(TableSchemaTest, CountsFeaturesOfNumbersCategoriesAndIndicators) {
  const absl::StatusOr<TableSchema> schema = TableSchema::FromJson(kJson);
  ASSERT_TRUE(schema.ok()) << schema.status();
  EXPECT_EQ(schema->features(), 4);
  EXPECT_EQ(schema->label(), 3);
}

TEST(TableSchemaTest, KeepsColumnsOfIds) {
  constexpr char kIds[] = R"({"has_names":true,"missing":"REFUSE","classes":[],"id_separator":"|","columns":[)"
                          R"({"kind":"looked_up","name":"tags","field":1,"texts":["","Ærø"]},)"
                          R"({"kind":"label","name":"clicked"},{"kind":"hashed","name":"user","field":0}]})";
  const absl::StatusOr<TableSchema> schema = TableSchema::FromJson(kIds);
  ASSERT_TRUE(schema.ok()) << schema.status();
  EXPECT_EQ(schema->ToJson(), kIds);
  EXPECT_EQ(schema->features(), 0);
  EXPECT_EQ(schema->IdFields(), (std::vector<std::string>{"user", "tags"}));
  EXPECT_EQ(schema->columns[0].texts, (std::vector<std::string>{"", "Ærø"}));
}

TEST(TableSchemaTest, NamesAFieldWithoutNameByTheNumberOfItsColumn) {
  TableSchema schema;
  schema.columns.resize(3);
  schema.columns[2].kind = TableColumn::Kind::kHashed;
  EXPECT_EQ(schema.IdFields(), std::vector<std::string>{"2"});
}

TEST(TableSchemaTest, RefusesAnyOtherJson) {
  const std::string columns =
      R"("columns":[{"name":"a","kind":"number","mean":0,"stddev":1,"fill":0,"indicator":false},)"
      R"({"name":"b","kind":"label"}])";
  const std::string rest = R"({"has_names":false,"missing":"REFUSE","classes":[],)";
  ASSERT_TRUE(TableSchema::FromJson(rest + columns + "}").ok());
  const struct {
    std::string json;
    const char* message;
  } cases[] = {
      {"",
       "not JSON: at line 1, column 1: syntax error while parsing value - unexpected end of input; expected '[', "
       "'{', or a literal"},
      {"[]", "JSON array, want an object"},
      {"{}", "\"has_names\" is missing, want true or false"},
      {R"({"has_names":true,"missing":"MAYBE"})", "\"missing\" is \"MAYBE\", want REFUSE, MEAN or INDICATOR"},
      {R"({"has_names":true,"missing":"MEAN","classes":["b","a"]})",
       "\"classes\" is no list of different texts in byte order"},
      {R"({"has_names":true,"missing":"MEAN","classes":[1]})",
       "\"classes\" is no list of different texts in byte order"},
      {rest + R"("columns":3})", "\"columns\" is no list"},
      {rest + R"("columns":[3]})", "column 0 (counted from 0): \"kind\" is missing, want a string"},
      {rest + R"("columns":[{"kind":"number","name":3}]})", "column 0 (counted from 0): \"name\" is 3, want a string"},
      {rest + R"("columns":[{"kind":"number","indicator":3}]})",
       "column 0 (counted from 0): \"indicator\" is 3, want true or false"},
      {rest + R"("columns":[{"name":"a","kind":"date"}]})",
       "column 0 (counted from 0): \"kind\" is \"date\", want number, category, label, ignored, hashed or looked_up"},
      {rest + R"("columns":[{"name":"a","kind":"number","mean":null}]})",
       "column 0 (counted from 0): \"mean\" is not finite"},
      {rest + R"("columns":[{"name":"a","kind":"number","stddev":-1}]})",
       "column 0 (counted from 0): \"stddev\" is negative"},
      {rest + R"("columns":[{"name":"a","kind":"category","categories":["x","x"]}]})",
       "column 0 (counted from 0): \"categories\" is no list of different texts in byte order"},
      {rest + R"("columns":[{"kind":"looked_up","field":0,"texts":["b","a"]}]})",
       "column 0 (counted from 0): \"texts\" is no list of different texts in byte order"},
      {rest + R"("columns":[{"kind":"hashed"}]})", "column 0 (counted from 0): \"field\" is missing, want a count"},
      {rest + R"("columns":[{"kind":"hashed","field":1},{"kind":"label"}]})",
       "\"field\" is 1, want each of 0 to 0 once"},
      {rest + R"("columns":[{"kind":"hashed","field":1},{"kind":"hashed","field":1},{"kind":"label"}]})",
       "\"field\" is 1, want each of 0 to 1 once"},
      {rest + R"("id_separator":"||","columns":[]})", "\"id_separator\" is \"||\", want one character"},
      {rest + R"("columns":[]})", "has 0 label columns, want 1"},
      {rest + R"("columns":[{"name":"b","kind":"label"}]})", "has no features, want at least 1"},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(TableSchema::FromJson(each.json).status(), absl::InvalidArgumentError(each.message)) << each.json;
  }
}

}  // namespace
}  // namespace ballast
