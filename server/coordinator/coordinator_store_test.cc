// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/coordinator_store.h"

#include <filesystem>
#include <fstream>

#include "common/storage/coordinator_log.h"
#include "common/storage/testing/lossy_file_system.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class CoordinatorStoreTest : public testing::Test {
 protected:
  CoordinatorStoreTest()
      : folder_(absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<CoordinatorStore> Open() {
    auto store = CoordinatorStore::Open(&files_, folder_, &clock_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  size_t Files() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }

  const std::string folder_;
  LossyFileSystem files_;
  ManualClock clock_;
};

TEST_F(CoordinatorStoreTest, TheLastStateIsThereForTheNextProcess) {
  auto store = Open();
  EXPECT_EQ(store->recovered(), "");
  ASSERT_TRUE(store->Save("one", false).ok());
  ASSERT_TRUE(store->Save("two", false).ok());
  store = Open();
  EXPECT_EQ(store->recovered(), "two");
  ASSERT_TRUE(store->Save("three", false).ok());
  EXPECT_EQ(Open()->recovered(), "three");
  EXPECT_EQ(Files(), 1) << "older logs are removed";
}

TEST_F(CoordinatorStoreTest, AProcessThatDiesBeforeItSavesLeavesTheStateBefore) {
  ASSERT_TRUE(Open()->Save("one", false).ok());
  Open();
  Open();
  EXPECT_EQ(Open()->recovered(), "one");
}

TEST_F(CoordinatorStoreTest, ASyncedStateOutlivesTheMachine) {
  auto store = Open();
  ASSERT_TRUE(store->Save("one", true).ok());
  ASSERT_TRUE(store->Save("two", true).ok());
  ASSERT_TRUE(store->Save("three", false).ok());
  store.reset();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ASSERT_TRUE(files_.LoseUnsynced(seed).ok());
    const std::string recovered = Open()->recovered();
    EXPECT_TRUE(recovered == "two" || recovered == "three") << recovered;
  }
}

TEST_F(CoordinatorStoreTest, OthersAreSyncedOnceASecond) {
  auto store = Open();
  ASSERT_TRUE(store->Save("one", false).ok());
  const uint64_t syncs = files_.syncs();
  ASSERT_TRUE(store->Save("two", false).ok());
  store->Settle();
  EXPECT_EQ(files_.syncs(), syncs);
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(store->Save("three", false).ok());
  EXPECT_EQ(files_.syncs(), syncs) << "Save does not wait for this sync";
  store->Settle();
  EXPECT_EQ(files_.syncs(), syncs + 1);
  clock_.Advance(absl::Seconds(1));
  store->Settle();
  EXPECT_EQ(files_.syncs(), syncs + 1) << "no state is unsynced";
}

TEST_F(CoordinatorStoreTest, AStateThatNoOtherFollowsIsSyncedToo) {
  auto store = Open();
  ASSERT_TRUE(store->Save("one", false).ok());
  const uint64_t syncs = files_.syncs();
  ASSERT_TRUE(store->Save("two", false).ok());
  store->Settle();
  EXPECT_EQ(files_.syncs(), syncs);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(files_.AwaitSyncs(syncs + 1, absl::Seconds(30)));
  store.reset();
  ASSERT_TRUE(files_.LoseUnsynced(1).ok());
  EXPECT_EQ(Open()->recovered(), "two");
}

TEST_F(CoordinatorStoreTest, AfterASyncThatFailedTheNextStateIsSyncedInANewLog) {
  auto store = Open();
  ASSERT_TRUE(store->Save("one", true).ok());
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(store->Save("two", false).ok());
  files_.FailSyncs(true);
  store->Settle();
  EXPECT_FALSE(store->Save("three", false).ok());
  files_.FailSyncs(false);
  ASSERT_TRUE(store->Save("four", false).ok());
  store.reset();
  ASSERT_TRUE(files_.LoseUnsynced(1).ok());
  EXPECT_EQ(Open()->recovered(), "four");
}

TEST_F(CoordinatorStoreTest, AfterASyncThatFoundTheDiskFullTheNextStateIsSyncedInANewLog) {
  auto store = Open();
  ASSERT_TRUE(store->Save("one", true).ok());
  files_.FailSyncsWith(absl::ResourceExhaustedError("No space left on device"));
  EXPECT_EQ(store->Save("two", true).code(), absl::StatusCode::kResourceExhausted);
  files_.FailSyncs(false);
  const uint64_t syncs = files_.syncs();
  ASSERT_TRUE(store->Save("three", false).ok());
  EXPECT_EQ(files_.syncs(), syncs + 1) << "it follows a state that may not be on the disk";
  store.reset();
  ASSERT_TRUE(files_.LoseUnsynced(1).ok());
  EXPECT_EQ(Open()->recovered(), "three");
}

TEST_F(CoordinatorStoreTest, ALongLogIsBegunAnew) {
  auto store = Open();
  const std::string state(1 << 20, 'x');
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(store->Save(absl::StrCat(i, state), false).ok());
  EXPECT_EQ(Files(), 1);
  EXPECT_EQ(Open()->recovered().substr(0, 3), "39x");
}

TEST_F(CoordinatorStoreTest, AFullDiskKeepsTheStateBeforeAndRecovers) {
  auto store = Open();
  ASSERT_TRUE(store->Save("one", false).ok());
  files_.SetFree(10);
  EXPECT_EQ(store->Save("two", false).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Open()->recovered(), "one");
  files_.SetFree(1 << 20);
  ASSERT_TRUE(store->Save("three", false).ok());
  EXPECT_EQ(Open()->recovered(), "three");
}

TEST_F(CoordinatorStoreTest, ADiskThatFailsToSyncIsNotTrusted) {
  auto store = Open();
  ASSERT_TRUE(store->Save("one", true).ok());
  files_.FailSyncs(true);
  EXPECT_FALSE(store->Save("two", true).ok());
  EXPECT_FALSE(store->Save("three", true).ok());
  files_.FailSyncs(false);
  ASSERT_TRUE(store->Save("four", true).ok());
  EXPECT_EQ(Open()->recovered(), "four");
}

TEST_F(CoordinatorStoreTest, DamageIsRefusedWithItsFile) {
  auto store = Open();
  for (const char* state : {"one", "two", "three"}) ASSERT_TRUE(store->Save(state, true).ok());
  store.reset();
  {
    std::fstream file(folder_ + "/states-1", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(50);
    file.put('X');
  }
  const auto damaged = CoordinatorStore::Open(&files_, folder_, &clock_);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(damaged.status().message().find("states-1"), absl::string_view::npos) << damaged.status();
}

// Flips a bit of the first state in a log.
void DamageFirstState(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(50);
  file.put('X');
}

TEST_F(CoordinatorStoreTest, DamageToTheOnlyStateIsRefused) {
  ASSERT_TRUE(Open()->Save("one", false).ok());
  DamageFirstState(folder_ + "/states-1");
  const auto damaged = CoordinatorStore::Open(&files_, folder_, &clock_);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss) << damaged.status();
}

TEST_F(CoordinatorStoreTest, DamageToTheLastSyncedStateIsRefused) {
  auto store = Open();
  ASSERT_TRUE(store->Save("one", true).ok());
  ASSERT_TRUE(store->Save("two", true).ok());
  store.reset();
  // Records: "one" of 56 bytes, its mark of 48, "two" of 56.
  std::fstream file(folder_ + "/states-1", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(56 + 48 + 48);
  file.put('X');
  file.close();
  const auto damaged = CoordinatorStore::Open(&files_, folder_, &clock_);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss) << damaged.status();
}

TEST_F(CoordinatorStoreTest, ALaterLogWithoutAWholeStateIsDamage) {
  auto store = Open();
  ASSERT_TRUE(store->Save("one", false).ok());
  store = Open();
  ASSERT_TRUE(store->Save("two", false).ok());
  store.reset();
  const auto logs = ListCoordinatorLogs(files_, folder_);
  ASSERT_TRUE(logs.ok()) << logs.status();
  ASSERT_EQ(logs->size(), 1);
  std::filesystem::resize_file(CoordinatorLogPath(folder_, logs->front()), 0);
  const auto damaged = CoordinatorStore::Open(&files_, folder_, &clock_);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss) << damaged.status();
}

TEST_F(CoordinatorStoreTest, AFirstStateThatCouldNotBeSavedIsNoDamage) {
  auto store = Open();
  files_.SetFree(10);
  EXPECT_FALSE(store->Save("one", false).ok());
  EXPECT_EQ(Open()->recovered(), "");
  files_.SetFree(1 << 20);
  ASSERT_TRUE(store->Save("two", false).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/states-1"));
  EXPECT_EQ(Open()->recovered(), "two");
}

}  // namespace
}  // namespace ballast
