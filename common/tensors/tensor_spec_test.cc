// SPDX-License-Identifier: Apache-2.0
#include "common/tensors/tensor_spec.h"

#include <limits>

#include "gtest/gtest.h"

namespace ballast {
namespace {

v1::TensorSpec Spec(std::vector<int64_t> shape) {
  v1::TensorSpec spec;
  spec.set_id(1);
  spec.set_name("fc1/weight");
  spec.mutable_shape()->Add(shape.begin(), shape.end());
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1f);
  return spec;
}

TEST(TensorSpecTest, AcceptsAnOrdinaryTensor) {
  EXPECT_TRUE(ValidateTensorSpec(Spec({10, 784})).ok());
  EXPECT_EQ(CountElements(Spec({10, 784})), 7840);
}

TEST(TensorSpecTest, RefusesShapesThatOverflow) {
  EXPECT_EQ(ValidateTensorSpec(Spec({int64_t{1} << 40, 2})).message(),
            "tensor \"fc1/weight\": more than 2^40 elements");
  EXPECT_FALSE(ValidateTensorSpec(Spec({int64_t{1} << 62, int64_t{1} << 62})).ok());
  EXPECT_TRUE(ValidateTensorSpec(Spec({int64_t{1} << 40})).ok());
}

TEST(TensorSpecTest, RefusesRanksAndDimensionsOutOfRange) {
  EXPECT_EQ(ValidateTensorSpec(Spec({})).message(), "tensor \"fc1/weight\": shape has rank 0, want 1 to 8");
  EXPECT_EQ(ValidateTensorSpec(Spec({3, -1})).message(), "tensor \"fc1/weight\": dimension -1, want at least 1");
}

TEST(TensorSpecTest, RefusesNamesThatCannotBePrinted) {
  v1::TensorSpec spec = Spec({1});
  spec.set_name("a b");
  EXPECT_EQ(ValidateTensorSpec(spec).message(),
            "tensor 1: name: got \"a b\" of 3 bytes, want 1 to 256 printable ones without spaces, such as fc1/weight");
}

TEST(TensorSpecTest, RefusesImpossibleOptimizers) {
  v1::TensorSpec spec = Spec({1});
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(std::numeric_limits<float>::infinity());
  EXPECT_EQ(ValidateTensorSpec(spec).message(),
            "tensor \"fc1/weight\": optimizer.sgd.learning_rate: got inf, want a finite number above 0");
}

std::vector<v1::SliceRange> Cut(uint64_t elements, void (*set)(v1::Optimizer*) = nullptr) {
  v1::TensorSpec spec = Spec({static_cast<int64_t>(elements)});
  if (set != nullptr) set(spec.mutable_optimizer());
  const std::vector<v1::SliceRange> slices = CutIntoSlices(spec);
  EXPECT_EQ(slices.size(), CountSlices(spec));
  uint64_t next = 0;
  for (const v1::SliceRange& slice : slices) {
    EXPECT_EQ(slice.offset(), next);
    EXPECT_LE(slice.elements(), kMaxSliceElements);
    EXPECT_LE(slices.front().elements() - slice.elements(), 1u);
    next += slice.elements();
  }
  EXPECT_EQ(next, elements);
  return slices;
}

TEST(TensorSpecTest, CutsIntoNearlyEqualSlicesThatCoverTheTensor) {
  EXPECT_EQ(Cut(1).size(), 1);
  EXPECT_EQ(Cut(2 * kMinCutElements - 1).size(), 1);
  EXPECT_EQ(Cut(2 * kMinCutElements).size(), 2);
  EXPECT_EQ(Cut(784 * 512).size(), 6);
  EXPECT_EQ(Cut(kMaxSliceElements).size(), 8);
  EXPECT_EQ(Cut(8 * kMaxSliceElements).size(), 8);
  EXPECT_EQ(Cut(8 * kMaxSliceElements + 2).size(), 9);
}

TEST(TensorSpecTest, CutsNoMoreThanItMustWhereNormsAreTakenOverASlice) {
  const auto clip = [](v1::Optimizer* optimizer) { optimizer->set_clip_norm(1); };
  const auto lamb = [](v1::Optimizer* optimizer) { optimizer->mutable_lamb()->set_learning_rate(1); };
  for (const auto set : {+clip, +lamb}) {
    EXPECT_EQ(Cut(kMaxSliceElements, set).size(), 1);
    EXPECT_EQ(Cut(kMaxSliceElements + 2, set).size(), 2);
  }
}

TEST(TensorSpecTest, RefusesJobNamesWithOtherCharacters) {
  EXPECT_TRUE(ValidateJobName("fashion_mnist-2").ok());
  EXPECT_FALSE(ValidateJobName("").ok());
  EXPECT_FALSE(ValidateJobName("../etc").ok());
  EXPECT_FALSE(ValidateJobName(std::string(64, 'a')).ok());
}

}  // namespace
}  // namespace ballast
