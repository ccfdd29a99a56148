// SPDX-License-Identifier: Apache-2.0
#include "common/tensors/shard_map.h"

#include "common/tables/table_spec_fixture.h"
#include "common/tensors/tensor_spec.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

v1::TensorSpec Spec(uint32_t id, const std::string& name, int64_t elements) {
  v1::TensorSpec spec;
  spec.set_id(id);
  spec.set_name(name);
  spec.add_shape(elements);
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1f);
  return spec;
}

TEST(ShardMapTest, BalancesElementsOverTheShards) {
  ShardMap map({"a:1", "b:2"});
  ASSERT_TRUE(map.Place({Spec(0, "small", 10), Spec(1, "large", 100), Spec(2, "middle", 95)}).ok());
  EXPECT_EQ(map.Find(1)->slices[0].shard, 0);
  EXPECT_EQ(map.Find(2)->slices[0].shard, 1);
  EXPECT_EQ(map.Find(0)->slices[0].shard, 1);
}

TEST(ShardMapTest, CutsALargeTensorAndSpreadsIt) {
  ShardMap map({"a:1", "b:2"});
  ASSERT_TRUE(map.Place({Spec(0, "large", 2 * kMinCutElements)}).ok());
  ASSERT_EQ(map.Find(0)->slices.size(), 2);
  EXPECT_NE(map.Find(0)->slices[0].shard, map.Find(0)->slices[1].shard);
}

TEST(ShardMapTest, CutsATensorLikeAnEarlierMap) {
  constexpr int64_t kElements = 4 * kMinCutElements;
  ShardMap earlier({"a:1", "b:2"});
  ASSERT_TRUE(earlier.Place({Spec(0, "w", kElements), Spec(1, "v", kElements)}).ok());
  v1::ShardMap proto = earlier.ToProto();
  // As a version cut it that makes fewer slices.
  proto.mutable_tensors(0)->clear_slices();
  for (const uint64_t half : {0, 1}) {
    v1::ShardMap::Slice* const slice = proto.mutable_tensors(0)->add_slices();
    slice->mutable_range()->set_index(half);
    slice->mutable_range()->set_offset(half * kElements / 2);
    slice->mutable_range()->set_elements(kElements / 2);
    slice->set_shard(1);
  }
  const absl::StatusOr<ShardMap> saved = ShardMap::FromProto(proto);
  ASSERT_TRUE(saved.ok()) << saved.status();
  ShardMap map({"a:1", "b:2"});
  ASSERT_TRUE(map.Place({Spec(0, "w", kElements), Spec(1, "v", 10), Spec(2, "u", 10)}, {}, &*saved).ok());
  ASSERT_EQ(map.Find(0)->slices.size(), 2);
  EXPECT_EQ(map.Find(0)->slices[1].offset, kElements / 2);
  EXPECT_NE(map.Find(0)->slices[0].shard, map.Find(0)->slices[1].shard) << "placed anew";
  EXPECT_EQ(map.Find(1)->slices.size(), 1) << "another size";
}

TEST(ShardMapTest, PlacingTheSameAgainChangesNothing) {
  ShardMap map({"a:1"});
  ASSERT_TRUE(map.Place({Spec(0, "w", 10)}).ok());
  const uint64_t epoch = map.epoch();
  ASSERT_TRUE(map.Place({Spec(0, "w", 10)}).ok());
  EXPECT_EQ(map.epoch(), epoch);
  EXPECT_EQ(map.tensors().size(), 1);
}

TEST(ShardMapTest, AConstantThatIsLeftOutIsItsDefault) {
  const auto spec = [](const std::string& optimizer) {
    v1::TensorSpec one = Spec(0, "w", 10);
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(optimizer, one.mutable_optimizer()));
    return one;
  };
  ShardMap map({"a:1"});
  ASSERT_TRUE(map.Place({spec("adam { learning_rate: 0.1 }")}).ok());
  EXPECT_TRUE(map.Place({spec("adam { learning_rate: 0.1 beta1: 0.9 epsilon: 1e-8 }")}).ok());
  const absl::Status status = map.Place({spec("adam { learning_rate: 0.1 beta1: 0.8 }")});
  EXPECT_NE(status.message().find("optimizer.adam.beta1: 0.9 -> 0.8"), std::string::npos) << status;
}

TEST(ShardMapTest, RefusesATensorDeclaredDifferently) {
  ShardMap map({"a:1"});
  ASSERT_TRUE(map.Place({Spec(0, "w", 10)}).ok());
  const absl::Status status = map.Place({Spec(1, "v", 5), Spec(0, "w", 12)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("shape[0]: 10 -> 12"), std::string::npos) << status;
  EXPECT_EQ(map.tensors().size(), 1);
  EXPECT_FALSE(map.Place({Spec(0, "other", 10)}).ok());
  EXPECT_FALSE(map.Place({Spec(7, "w", 10)}).ok());
}

TEST(ShardMapTest, SurvivesTheWire) {
  ShardMap map({"a:1", "b:2"});
  ASSERT_TRUE(map.Place({Spec(0, "w", 3 * kMaxSliceElements + 5)}).ok());
  ShardMap copy = ShardMap::FromProto(map.ToProto()).value();
  EXPECT_EQ(copy.ToProto().SerializeAsString(), map.ToProto().SerializeAsString());
}

TEST(ShardMapTest, RefusesAMapWithAGap) {
  ShardMap map({"a:1"});
  ASSERT_TRUE(map.Place({Spec(0, "w", 2 * kMaxSliceElements)}).ok());
  v1::ShardMap proto = map.ToProto();
  proto.mutable_tensors(0)->mutable_slices()->RemoveLast();
  EXPECT_EQ(ShardMap::FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
  proto = map.ToProto();
  proto.mutable_tensors(0)->mutable_slices(0)->set_shard(1);
  EXPECT_EQ(ShardMap::FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ShardMapTest, RefusesWhatNoMessageCanCarry) {
  ShardMap map({"a:1"});
  // 2^40 elements make a million slices.
  const absl::Status status = map.Place({Spec(0, "w", 10), Spec(1, "huge", int64_t{1} << 40)});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("tensor \"huge\" makes it "), std::string::npos) << status;
  EXPECT_TRUE(map.tensors().empty());
  // 400 GB.
  ASSERT_TRUE(map.Place({Spec(1, "large", 100'000'000'000)}).ok());
  EXPECT_LT(map.ToProto().ByteSizeLong(), 4 << 20);
  EXPECT_FALSE(map.Place({Spec(2, "more", 100'000'000'000)}).ok());
}

TEST(ShardMapTest, SpreadsATableOverAllShards) {
  ShardMap map({"a:1", "b:2"});
  ASSERT_TRUE(map.Place({Spec(0, "w", 10)}, {SgdTable(1, "ids", 16)}).ok());
  ASSERT_EQ(map.tables().size(), 1);
  EXPECT_EQ(map.FindTable(1)->OwnerOf(0), 0);
  EXPECT_EQ(map.FindTable(1)->OwnerOf(4095), 1);
  EXPECT_EQ(map.FindTable(0), nullptr) << "a tensor is no table";
  EXPECT_EQ(map.Find(1), nullptr) << "a table is no tensor";
}

TEST(ShardMapTest, PlacingTheSameTableAgainChangesNothing) {
  ShardMap map({"a:1"});
  ASSERT_TRUE(map.Place({}, {SgdTable(1, "ids", 16)}).ok());
  const uint64_t epoch = map.epoch();
  v1::TableSpec written_out = SgdTable(1, "ids", 16);
  written_out.set_range_bits(12);
  ASSERT_TRUE(map.Place({}, {written_out, SgdTable(1, "ids", 16)}).ok());
  EXPECT_EQ(map.epoch(), epoch);
  EXPECT_EQ(map.tables().size(), 1);
}

TEST(ShardMapTest, RefusesATableDeclaredDifferently) {
  ShardMap map({"a:1"});
  ASSERT_TRUE(map.Place({}, {SgdTable(1, "ids", 16)}).ok());
  const absl::Status status = map.Place({}, {SgdTable(2, "more", 8), SgdTable(1, "ids", 32)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "table 1 \"ids\" was declared before as \"ids\" and differs: modified: dim: 16 -> 32");
  EXPECT_EQ(map.tables().size(), 1);
}

TEST(ShardMapTest, TablesAndTensorsShareIdsAndNames) {
  ShardMap map({"a:1"});
  ASSERT_TRUE(map.Place({Spec(0, "w", 10)}, {SgdTable(1, "ids", 16)}).ok());
  const absl::Status same_id = map.Place({}, {SgdTable(0, "other", 16)});
  EXPECT_EQ(same_id.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(same_id.message(), "table 0 \"other\" was declared before as tensor 0 \"w\"");
  EXPECT_EQ(map.Place({Spec(2, "ids", 10)}).message(), "tensor 2 \"ids\" was declared before as table 1 \"ids\"");
  EXPECT_FALSE(map.Place({Spec(3, "both", 10)}, {SgdTable(4, "both", 16)}).ok());
  EXPECT_EQ(map.tensors().size(), 1);
  EXPECT_EQ(map.tables().size(), 1);
}

TEST(ShardMapTest, TablesSurviveTheWire) {
  ShardMap map({"a:1", "b:2", "c:3"});
  ASSERT_TRUE(map.Place({Spec(0, "w", 10)}, {SgdTable(1, "ids", 16)}).ok());
  const ShardMap copy = ShardMap::FromProto(map.ToProto()).value();
  EXPECT_EQ(copy.ToProto().SerializeAsString(), map.ToProto().SerializeAsString());
  EXPECT_EQ(copy.tables()[0].spans.size(), 3);
}

TEST(ShardMapTest, RefusesAMapInWhichNobodyOwnsARange) {
  ShardMap map({"a:1", "b:2"});
  ASSERT_TRUE(map.Place({}, {SgdTable(1, "ids", 16)}).ok());
  v1::ShardMap proto = map.ToProto();
  proto.mutable_tables(0)->mutable_spans()->RemoveLast();
  EXPECT_EQ(ShardMap::FromProto(proto).status().message(),
            "shard map: table \"ids\": got spans of 2048 ranges, want 4096");
}

}  // namespace
}  // namespace ballast
