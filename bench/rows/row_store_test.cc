// SPDX-License-Identifier: Apache-2.0
#include "bench/rows/row_store.h"

#include <string>
#include <vector>

#include "bench/rows/row_sampler.h"
#include "bench/rows/row_workload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::SizeIs;

TEST(RowStoreTest, KindsBeginWithOurs) {
  std::vector<std::string> names;
  for (const RowStoreKind& kind : RowStoreKinds()) names.push_back(kind.name);
  EXPECT_THAT(names, ElementsAre("ballast", "absl", "libcuckoo"));
}

// Two updates by row-wise Adagrad with rate 0.01 and equal gradients: w = -0.01 * (1 + 1 / sqrt(2)).
TEST(RowStoreTest, AllStoresUpdateRowsEqually) {
  for (const RowStoreKind& kind : RowStoreKinds()) {
    SCOPED_TRACE(kind.name);
    const std::unique_ptr<RowStore> store = kind.make(100, 16);
    RowWorkload workload(16, 40);
    EXPECT_THAT(workload.Fill(*store, 100), SizeIs(3));
    const std::vector<uint64_t> hashes = SortedHashes(RowSampler(100, 0, 1).Draw(40));
    workload.Push(*store, hashes);
    workload.Pull(*store, hashes);
    EXPECT_THAT(workload.values(), SizeIs(40 * 16));
    EXPECT_THAT(workload.values(), Each(testing::FloatNear(-0.0170711f, 1e-6f)));
    EXPECT_THAT(store->MemoryBytes(), Gt(100 * 80));
  }
}

TEST(RowStoreTest, PresizedStoreHasMoreMemoryBeforeItsFirstRow) {
  EXPECT_GT(MakeBallastRows(1'000'000, 16)->MemoryBytes(), MakeBallastRows(0, 16)->MemoryBytes() + 16'000'000);
}

TEST(RowWorkloadTest, MeasuresTheTimeOfACall) {
  const std::unique_ptr<RowStore> store = MakeBallastRows(0, 16);
  EXPECT_THAT(RowWorkload(16, 10000).Fill(*store, 10000), ElementsAre(Gt(0)));
}

}  // namespace
}  // namespace ballast
