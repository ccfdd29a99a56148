// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file_checker.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "ballast/v1/job.pb.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Check(absl::string_view text,
                               const google::protobuf::Descriptor* type = v1::Job::descriptor()) {
  std::vector<std::string> lines;
  for (const TextError& error : CheckMessageText(text, *type, "the job")) {
    lines.push_back(absl::StrCat(error.line, ":", error.column, ": ", error.message));
  }
  return lines;
}

TEST(CheckMessageTextTest, AcceptsEveryFormOfTheTextFormat) {
  EXPECT_THAT(Check("name: 'a' \"b\"  # comment\n"
                    "model <layers: [{dense {units: 5}}, {relu: {}}]; layers {tanh {}},>\n"
                    "training { no_shuffle: true epochs: 0x10 }\n"
                    "data { normalization { mean: -1.5e3f stddev: inf } }\n"
                    "data: { train { csv { label_column: -1 } } }"),
              IsEmpty());
}

TEST(CheckMessageTextTest, PointsAtTheMisspeltFieldAndSaysWhatIsNear) {
  EXPECT_THAT(Check("model {\n  layers { dense {\n    unit: 10 } } }"),
              ElementsAre("3:5: model.layers.dense has no field \"unit\"; did you mean \"units\"?"));
}

TEST(CheckMessageTextTest, NamesTheOutermostMessage) {
  EXPECT_THAT(Check("trainin { epochs: 3 }"),
              ElementsAre("1:1: the job has no field \"trainin\"; did you mean \"training\"?"));
}

TEST(CheckMessageTextTest, SuggestsTheNearestKind) {
  EXPECT_THAT(Check("model { layers { rellu {} } }"),
              ElementsAre("1:18: model.layers has no field \"rellu\"; did you mean \"relu\"?"));
}

TEST(CheckMessageTextTest, ListsTheFieldsWhereNoneIsNear) {
  EXPECT_THAT(Check("policy { gossip { rate: 1 } }"),
              ElementsAre("1:10: policy has no field \"gossip\"; valid names are \"sync\", \"async\", \"bounded\", "
                          "\"local_sgd\", \"accept_non_finite\""));
}

TEST(CheckMessageTextTest, StopsWhereMessagesLieTooDeep) {
  std::string text = "model { ";
  for (int i = 0; i < 100000; ++i) text += "layers { residual { ";
  EXPECT_THAT(Check(text), ElementsAre("1:318: model.layers.residual.layers.residual.layers.residual.layers.residual"
                                       ".layers.res... is 33 messages deep, want at most 32"));
}

TEST(CheckMessageTextTest, SaysThatAMessageHasNoFields) {
  EXPECT_THAT(Check("model { layers { relu { slope: 0.1 } } }"),
              ElementsAre("1:25: model.layers.relu has no field \"slope\"; it has no fields"));
}

TEST(CheckMessageTextTest, GivesTheNewNameOfAFieldThatWasRenamed) {
  EXPECT_THAT(Check("codec { top_k_share: 0.1 }"),
              ElementsAre("1:9: codec has no field \"top_k_share\"; its name is \"top_k_fraction\" now"));
  EXPECT_THAT(Check("optimizer { schedule { one_cycle { rise_share: 0.1 } } }"),
              ElementsAre("1:36: optimizer.schedule.one_cycle has no field \"rise_share\"; its name is "
                          "\"warmup_fraction\" now"));
  EXPECT_THAT(Check("optimizer { schedule { cosine { final_share: 0.1 } } }"),
              ElementsAre("1:33: optimizer.schedule.cosine has no field \"final_share\"; its name is "
                          "\"min_rate_ratio\" now"));
}

TEST(CheckMessageTextTest, ReportsAllFaultsInTheOrderOfTheText) {
  EXPECT_THAT(Check("nme: \"x\"\nmodell { layers { dense { } } }\ntraining { epoch: [1, {a: 2}] }"),
              ElementsAre("1:1: the job has no field \"nme\"; did you mean \"name\"?",
                          "2:1: the job has no field \"modell\"; did you mean \"model\"?",
                          "3:12: training has no field \"epoch\"; did you mean \"epochs\"?"));
}

TEST(CheckMessageTextTest, RefusesValuesOfTheWrongType) {
  EXPECT_THAT(
      Check("name: 5\n"
            "training { epochs: \"5\" batch_size: -1 no_shuffle: 3 }\n"
            "optimizer { momentum { learning_rate: \"high\" } }\n"
            "model { layers { dense { units: 1.5 } } loss: 7 }\n"
            "seed: { }"),
      ElementsAre("1:7: name is 5, want a quoted string",
                  "2:20: training.epochs is \"5\", want a whole number of at least 0",
                  "2:36: training.batch_size is a negative number, want a whole number of at least 0",
                  "2:51: training.no_shuffle is 3, want true or false",
                  "3:39: optimizer.momentum.learning_rate is \"high\", want a number",
                  "4:33: model.layers.dense.units is 1.5, want a whole number", "4:47: model.loss is 7, want { ... }",
                  "5:7: seed is { ... }, want a whole number of at least 0"));
}

TEST(CheckMessageTextTest, SuggestsTheNearestEnumName) {
  EXPECT_THAT(Check("encoding: ENCODING_FP23", v1::SliceValue::descriptor()),
              ElementsAre("1:11: encoding has no value \"ENCODING_FP23\"; did you mean \"ENCODING_FP32\"?"));
}

TEST(CheckMessageTextTest, EndsOnBadSyntaxWithWhatItFound) {
  for (const char* text : {"nme: 1 {", "nme: 1 [", "nme: 1 name", "nme: 1 model { layers", "nme: 1 \"", "nme: 1 )",
                           "nme: 1 a: {{{{[[", "nme: 1 name: -"}) {
    EXPECT_EQ(Check(text).at(0), "1:1: the job has no field \"nme\"; did you mean \"name\"?") << text;
  }
}

TEST(CheckMessageTextTest, SaysWhichMessageIsNeverClosed) {
  const std::pair<const char*, const char*> cases[] = {
      {"name: \"x\"\nmodel {\n  layers { dense { units: 3 } }\n", "2:7: model is opened here and never closed, want }"},
      {"training { epochs: 1", "1:10: training is opened here and never closed, want }"},
      {"model {\n  layers { dense { units: 3 }\n  layers { relu {} }\n}\ntraining { epochs: 1 }\n",
       "3:3: a } is missing: model.layers, opened at line 2, has no field \"layers\""},
      {"training {\n  epochs: 1\noptimizer { sgd {} }\n",
       "3:1: a } is missing: training, opened at line 1, has no field \"optimizer\""},
  };
  for (const auto& [text, message] : cases) EXPECT_THAT(Check(text), ElementsAre(message));
}

TEST(CheckMessageTextTest, AFieldInTheWrongMessageMissesNoBrace) {
  EXPECT_THAT(Check("training { optimizer { sgd {} } }"),
              ElementsAre(::testing::StartsWith("1:12: training has no field \"optimizer\"; valid names are ")));
}

TEST(CheckMessageTextTest, TakesAnyDepthOfBracketsInAnUnknownField) {
  EXPECT_THAT(Check(absl::StrCat("x: ", std::string(1000000, '{'))).size(), 1);
}

TEST(ParseMessageTextTest, ParsesAnyMessageAndNamesTheTextInFaults) {
  v1::Optimizer optimizer;
  ASSERT_TRUE(ParseMessageText("sgd { learning_rate: 0.5 }", "optimizer", "the optimizer", &optimizer).ok());
  EXPECT_EQ(optimizer.sgd().learning_rate(), 0.5f);
  const absl::Status status = ParseMessageText("sgd { rate: 1 }\nadamm {}", "optimizer", "the optimizer", &optimizer);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("optimizer:1:7: sgd has no field \"rate\""));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("optimizer:2:1: the optimizer has no field"));
}

}  // namespace
}  // namespace ballast
