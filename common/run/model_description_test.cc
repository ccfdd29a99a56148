// SPDX-License-Identifier: Apache-2.0
#include "common/run/model_description.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>

namespace ballast {
namespace {

using ::testing::HasSubstr;

v1::Job Parse(const std::string& text) {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return job;
}

constexpr char kJob[] = R"(
name: "shirts"
data {
  train { idx { images: "/secret/images" labels: "/secret/labels" } }
  normalization { mean: 72.9 stddev: 90 }
}
model {
  input { height: 2 width: 3 }
  layers { residual { layers { batch_norm { momentum: 0.5 } device: "cpu" } } device: "0" }
  layers { name: "out" dense { units: 5 } }
  loss { softmax_cross_entropy {} }
}
)";

TEST(ModelDescriptionTest, TheMetadataGiveTheSameDescription) {
  const ModelDescription written = DescribeModel(Parse(kJob), 6, "{}");
  const absl::StatusOr<ModelDescription> read = ParseMetadata(ToMetadata(written, 12));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->model.SerializeAsString(), written.model.SerializeAsString());
  EXPECT_EQ(read->source.SerializeAsString(), written.source.SerializeAsString());
  EXPECT_EQ(read->normalization.SerializeAsString(), written.normalization.SerializeAsString());
  EXPECT_EQ(read->features, 6);
  EXPECT_EQ(read->table, "{}");
  EXPECT_EQ(read->job, "shirts");
}

TEST(ModelDescriptionTest, EachLayerIsNamedAndNothingNamesTheMachine) {
  const ModelDescription description = DescribeModel(Parse(kJob), 6, "");
  EXPECT_EQ(description.model.layers(0).name(), "residual1");
  EXPECT_EQ(description.model.layers(0).device(), "");
  EXPECT_EQ(description.model.layers(0).residual().layers(0).name(), "batch_norm1");
  EXPECT_EQ(description.model.layers(0).residual().layers(0).device(), "");
  for (const auto& [key, value] : ToMetadata(description, 0)) EXPECT_EQ(value.find("secret"), std::string::npos) << key;
}

TEST(ModelDescriptionTest, TheMetadataAreReadableWithoutBallast) {
  const std::map<std::string, std::string> metadata = ToMetadata(DescribeModel(Parse(kJob), 6, ""), 12);
  EXPECT_EQ(metadata.at("job"), "shirts");
  EXPECT_EQ(metadata.at("step"), "12");
  EXPECT_EQ(metadata.at("features"), "6");
  EXPECT_EQ(metadata.at("layout"), "HWC");
  EXPECT_EQ(metadata.at("loss"), "softmax_cross_entropy");
  EXPECT_EQ(metadata.at("source"), R"({"idx":{}})");
  EXPECT_EQ(metadata.at("normalization"), R"({"mean":72.9,"stddev":90})");
  EXPECT_EQ(metadata.at("model"), R"({"layers":[{"name":"residual1","residual":{"layers":[{"name":"batch_norm1",)"
                                  R"("batch_norm":{"momentum":0.5}}]}},{"name":"out","dense":{"units":"5"}}],)"
                                  R"("loss":{"softmax_cross_entropy":{}},"input":{"height":"2","width":"3"}})");
  EXPECT_FALSE(metadata.contains("table"));
}

TEST(ModelDescriptionTest, RefusesMetadataThatDescribeNoModel) {
  const struct {
    const char* key;
    const char* value;
    const char* error;
  } cases[] = {
      {"model", "", "got no \"model\" in the metadata"},
      {"model", "{", "metadata \"model\": not JSON of a ballast.v1.Model"},
      {"model", "[]", "metadata \"model\": not JSON"},
      {"model", R"({"layers":[{"dance":{}}]})", "metadata \"model\": not JSON"},
      {"model", "{}", "model.layers: got nothing"},
      {"model", R"({"layers":[{"dense":{"units":"-1"}}],"loss":{"mean_squared_error":{}}})",
       "model.layers[0].dense.units: got -1"},
      {"source", "7", "metadata \"source\": not JSON of a ballast.v1.DataSource"},
      {"normalization", R"({"stddev":0})", "normalization.stddev: got 0"},
      {"features", "many", "metadata \"features\": got \"many\", want a number"},
  };
  for (const auto& each : cases) {
    std::map<std::string, std::string> metadata = ToMetadata(DescribeModel(Parse(kJob), 6, ""), 12);
    metadata[each.key] = each.value;
    const absl::Status status = ParseMetadata(metadata).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << each.value;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.error));
  }
}

}  // namespace
}  // namespace ballast
