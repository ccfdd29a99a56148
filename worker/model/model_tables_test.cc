// SPDX-License-Identifier: Apache-2.0
// Models whose batches bring rows of tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "worker/device/testing/queued_device.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr int64_t kDim = 4;

// Numbers through a layer, then the vectors of two fields of one table and of one field of another, and their products.
constexpr char kModel[] = R"(
  tables { name: "ab" dim: 4 } tables { name: "c" dim: 4 }
  layers { dense { units: 4 } } layers { tanh {} }
  layers { embedding { table: "c" fields: "c" pooling: AVERAGE } }
  layers { embedding { table: "ab" fields: "b" fields: "a" } }
  layers { dot_interaction { dim: 4 } }
  layers { dense { units: 1 } } loss { sigmoid_cross_entropy {} })";

// Three examples: bags of several rows, repeated ones, and none.
struct Examples {
  std::vector<float> features = {0.5f, -1.0f, 0.25f, 2.0f, -0.5f, 1.5f};
  std::vector<float> labels = {1, 0, 1};
  // Fields b and a of each example.
  std::vector<uint32_t> ab_ends = {1, 2, 4, 5, 5, 6}, ab_places = {0, 1, 2, 2, 1, 0};
  std::vector<uint32_t> c_ends = {2, 2, 3}, c_places = {0, 1, 1};
  std::vector<float> ab = std::vector<float>(3 * kDim), c = std::vector<float>(2 * kDim);
  std::vector<RowsView> views;

  Examples() {
    for (size_t i = 0; i < ab.size(); ++i) ab[i] = std::sin(1.0f + i);
    for (size_t i = 0; i < c.size(); ++i) c[i] = std::cos(2.0f + i);
  }
  BatchView View() {
    views = {{ab, ab_ends, ab_places}, {c, c_ends, c_places}};
    return {.features = features, .labels = labels, .examples = 3, .tables = views};
  }
};

class ModelTablesTest : public ModelFixture {
 protected:
  absl::StatusOr<std::unique_ptr<Model>> CreateOn(const std::string& text, Device* device, int64_t features = 2) {
    return Model::Create(ParseModel(text), {.features = features,
                                            .id_fields = {"a", "b", "c"},
                                            .seed = 1,
                                            .max_batch = kMaxBatch,
                                            .devices = {{"cpu", device}}});
  }

  std::string Refusal(const std::string& text, int64_t features = 2) {
    return std::string(CreateOn(text, &device(), features).status().message());
  }
};

TEST_F(ModelTablesTest, TablesAreInTheOrderOfTheModel) {
  const auto model = CreateOn(kModel, &device());
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ((*model)->tables().size(), 2);
  EXPECT_THAT((*model)->tables()[0].fields, ElementsAre(1, 0));
  EXPECT_FALSE((*model)->tables()[0].mean);
  EXPECT_THAT((*model)->tables()[1].fields, ElementsAre(2));
  EXPECT_TRUE((*model)->tables()[1].mean);
  EXPECT_TRUE((*model)->predicts_probability());
  EXPECT_THAT((*model)->Describe(), HasSubstr("embedding of 2 x 4 from ab -> dot interaction of 4 x 4"));
}

TEST_F(ModelTablesTest, GradientsOfRowsAndParametersAreThoseOfTheMeanLoss) {
  const auto made = CreateOn(kModel, &device());
  ASSERT_TRUE(made.ok()) << made.status();
  Model& model = **made;
  SetParameters(model);
  Examples data;
  ASSERT_TRUE(TrainOnce(model, data.View()).ok());
  std::vector<float> ab(data.ab.size()), c(data.c.size());
  ASSERT_TRUE(model.GetRowGradients(0, absl::MakeSpan(ab)).ok());
  ASSERT_TRUE(model.GetRowGradients(1, absl::MakeSpan(c)).ok());
  const std::vector<float> weights = Gradient(model, 0);
  const auto loss = [&] { return model.Evaluate(data.View())->loss_sum / 3; };
  // Central differences.
  const auto slope = [&](float& value) {
    constexpr float kStep = 1e-2f;
    const float before = value;
    value = before + kStep;
    const double above = loss();
    value = before - kStep;
    const double below = loss();
    value = before;
    return static_cast<float>((above - below) / (2 * kStep));
  };
  for (size_t i = 0; i < ab.size(); ++i) EXPECT_NEAR(ab[i], slope(data.ab[i]), 2e-4f) << i;
  for (size_t i = 0; i < c.size(); ++i) EXPECT_NEAR(c[i], slope(data.c[i]), 2e-4f) << i;
  std::vector<float> values(weights.size());
  ASSERT_TRUE(model.GetParameter(0, absl::MakeSpan(values)).ok());
  for (size_t i = 0; i < values.size(); ++i) {
    const float before = values[i];
    values[i] = before + 1e-2f;
    ASSERT_TRUE(model.SetParameter(0, values).ok());
    const double above = loss();
    values[i] = before - 1e-2f;
    ASSERT_TRUE(model.SetParameter(0, values).ok());
    const double below = loss();
    values[i] = before;
    EXPECT_NEAR(weights[i], (above - below) / 2e-2, 2e-4) << i;
  }
}

TEST_F(ModelTablesTest, EvaluationGivesTheOutputs) {
  const auto model = CreateOn(kModel, &device());
  ASSERT_TRUE(model.ok()) << model.status();
  SetParameters(**model);
  Examples data;
  std::vector<float> outputs(3);
  const auto result = (*model)->Evaluate(data.View(), absl::MakeSpan(outputs));
  ASSERT_TRUE(result.ok()) << result.status();
  double loss = 0;
  for (int i = 0; i < 3; ++i) loss += std::log1p(std::exp(outputs[i])) - data.labels[i] * outputs[i];
  EXPECT_NEAR(result->loss_sum, loss, 1e-5);
  std::vector<float> short_by_one(2);
  EXPECT_FALSE((*model)->Evaluate(data.View(), absl::MakeSpan(short_by_one)).ok());
}

TEST_F(ModelTablesTest, ADeviceThatTheHostCannotAddressGivesTheSameGradients) {
  const auto queued = CreateQueuedDevice();
  const auto here = CreateOn(kModel, &device()), there = CreateOn(kModel, queued.get());
  ASSERT_TRUE(here.ok() && there.ok()) << there.status();
  Examples data;
  std::vector<std::vector<float>> rows;
  for (Model* model : {here->get(), there->get()}) {
    SetParameters(*model);
    // The second batch has fewer rows than the first.
    ASSERT_TRUE(TrainOnce(*model, data.View()).ok());
    Examples fewer;
    fewer.ab.resize(2 * kDim);
    fewer.ab_places = {0, 1, 1, 1, 1, 0};
    ASSERT_TRUE(TrainOnce(*model, fewer.View()).ok());
    std::vector<float>& gradient = rows.emplace_back(fewer.ab.size());
    ASSERT_TRUE(model->GetRowGradients(0, absl::MakeSpan(gradient)).ok());
  }
  EXPECT_EQ(rows[0], rows[1]);
}

TEST_F(ModelTablesTest, BatchesGrowAndMayBeEmpty) {
  const auto model = CreateOn(kModel, &device());
  ASSERT_TRUE(model.ok()) << model.status();
  SetParameters(**model);
  const std::vector<RowsView> nothing(2);
  ASSERT_TRUE(TrainOnce(**model, {.tables = nothing}).ok());
  Examples data;
  data.ab.resize(1000 * kDim);
  ASSERT_TRUE(TrainOnce(**model, data.View()).ok());
  std::vector<float> gradient(data.ab.size());
  ASSERT_TRUE((*model)->GetRowGradients(0, absl::MakeSpan(gradient)).ok());
  // Rows without a use have no gradient.
  EXPECT_THAT(std::vector<float>(gradient.begin() + 3 * kDim, gradient.end()),
              Pointwise(FloatNear(0), std::vector<float>(997 * kDim)));
  EXPECT_FALSE((*model)->GetRowGradients(0, absl::MakeSpan(gradient).first(4)).ok());
}

TEST_F(ModelTablesTest, IdsAloneMakeAModel) {
  const auto model = CreateOn(R"(tables { name: "t" dim: 4 } layers { embedding { table: "t" } }
      layers { dense { units: 1 } } loss { sigmoid_cross_entropy {} })",
                              &device(), 0);
  ASSERT_TRUE(model.ok()) << model.status();
  SetParameters(**model);
  const std::vector<float> values(kDim, 1.0f), labels = {1};
  const std::vector<uint32_t> ends = {1, 1, 2}, places = {0, 0};
  const std::vector<RowsView> views = {{values, ends, places}};
  ASSERT_TRUE(TrainOnce(**model, {.labels = labels, .examples = 1, .tables = views}).ok());
  std::vector<float> gradient(kDim);
  EXPECT_TRUE((*model)->GetRowGradients(0, absl::MakeSpan(gradient)).ok());
  EXPECT_NE(gradient[0], 0);
}

TEST_F(ModelTablesTest, RecomputationKeepsTheBits) {
  v1::Model config = ParseModel(kModel);
  for (v1::Layer& layer : *config.mutable_layers()) layer.set_recompute(true);
  const auto plain = CreateOn(kModel, &device());
  const auto again = Model::Create(config, {.features = 2,
                                            .id_fields = {"a", "b", "c"},
                                            .seed = 1,
                                            .max_batch = kMaxBatch,
                                            .recompute = true,
                                            .devices = {{"cpu", &device()}}});
  ASSERT_TRUE(plain.ok() && again.ok()) << again.status();
  std::vector<std::vector<float>> gradients;
  for (Model* model : {plain->get(), again->get()}) {
    SetParameters(*model);
    Examples data;
    ASSERT_TRUE(TrainOnce(*model, data.View()).ok());
    gradients.push_back(Gradients(*model));
    std::vector<float>& rows = gradients.emplace_back(data.ab.size());
    ASSERT_TRUE(model->GetRowGradients(0, absl::MakeSpan(rows)).ok());
  }
  EXPECT_EQ(gradients[0], gradients[2]);
  EXPECT_EQ(gradients[1], gradients[3]);
}

TEST_F(ModelTablesTest, RowsThatDoNotFitAreRefused) {
  const auto model = CreateOn(kModel, &device());
  ASSERT_TRUE(model.ok()) << model.status();
  Examples data;
  BatchView view = data.View();
  view.tables = view.tables.first(1);
  EXPECT_EQ(TrainOnce(**model, view).status().message(), "batch: got rows of 1 tables, want 2");
  data.ab_ends.pop_back();
  EXPECT_EQ(TrainOnce(**model, data.View()).status().message(),
            "batch: got 5 bags with 6 places of table 0, want 6 with 5");
}

TEST_F(ModelTablesTest, ModelsThatDoNotFitTheDataAreRefused) {
  const std::string end = " layers { dense { units: 1 } } loss { sigmoid_cross_entropy {} }";
  const std::string table = "tables { name: 't' dim: 4 } ";
  EXPECT_EQ(Refusal(table + "layers { embedding { table: 'u' } }" + end),
            "layer \"embedding1\": the model has no table \"u\", want one of model.tables");
  EXPECT_EQ(Refusal(table + end), "model.tables: no layer looks up rows of \"t\", want an embedding");
  EXPECT_EQ(Refusal(table + "layers { embedding { table: 't' } } layers { embedding { table: 't' } }" + end),
            "layer \"embedding2\": an earlier layer looks up rows of table \"t\", want a table for each");
  EXPECT_EQ(Refusal(table + "layers { embedding { table: 't' fields: 'd' } }" + end),
            "layer \"embedding1\": the data has no field of ids \"d\", want one of its 3, like \"a\"");
  EXPECT_EQ(Refusal(table + "layers { embedding { table: 't' fields: ['a', 'a'] } }" + end),
            "layer \"embedding1\": got a field of ids twice in a, a, want each once");
  EXPECT_EQ(Refusal(table +
                    "layers { dense { units: 6 } } layers { embedding { table: 't' } } layers { "
                    "dot_interaction { dim: 4 } }" +
                    end),
            "layer \"dot_interaction1\": gets 18 inputs, want a multiple of its dim, 4: vectors of that length");
  EXPECT_EQ(Refusal("layers { dense { units: 2 } } loss { sigmoid_cross_entropy {} }"),
            "loss sigmoid_cross_entropy: the last layer, \"dense1\", has 2 outputs, want 1");
  EXPECT_EQ(Refusal("layers { dense { units: 2 } }" + end, 0),
            "model: got 0 features, want 1 to 1099511627776; for ids alone, the first layer is an embedding");
}

}  // namespace
}  // namespace ballast
