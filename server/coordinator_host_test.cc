// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator_host.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/concurrency/clock.h"
#include "common/status/testing/status_matcher.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class CoordinatorHostTest : public testing::Test {
 protected:
  CoordinatorHostTest() {
    options_.state_dir =
        absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(options_.state_dir);
  }

  ServerOptions options_;
};

TEST_F(CoordinatorHostTest, KeepsTheJobForTheNextProcess) {
  auto host = CoordinatorHost::Open(options_, nullptr, nullptr, nullptr);
  ASSERT_THAT(host, IsOk());
  v1::Job job;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(name: "job" training { epochs: 1 batch_size: 10 } policy { sync {} } durability { mode: WAL })", &job));
  ASSERT_TRUE((*host)->coordinator().Join({MemberRole::kServer, 0, "127.0.0.1:1", "server process", {}, 0}).ok());
  ASSERT_TRUE((*host)->coordinator().Join({MemberRole::kWorker, 0, "", "worker process", job, 20}).ok());
  absl::Notification saved;
  (*host)->coordinator().AwaitSaved([&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    saved.Notify();
  });
  saved.WaitForNotification();
  host->reset();
  host = CoordinatorHost::Open(options_, nullptr, nullptr, nullptr);
  ASSERT_THAT(host, IsOk());
  EXPECT_EQ((*host)->coordinator().job_name(), "job");
}

TEST_F(CoordinatorHostTest, RefusesASavedStateThatDoesNotParse) {
  auto store = CoordinatorStore::Open(options_.files, options_.state_dir + "/coordinator", Clock::Real());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Save("not a state", true).ok());
  store->reset();
  EXPECT_THAT(CoordinatorHost::Open(options_, nullptr, nullptr, nullptr),
              Fails(absl::StatusCode::kDataLoss, "/coordinator: the last record does not parse"));
}

TEST_F(CoordinatorHostTest, NumbersCheckpointsAfterThoseInTheDirectory) {
  CheckpointFolder checkpoints(options_.files, options_.state_dir + "/checkpoints");
  std::filesystem::create_directories(checkpoints.path());
  for (uint64_t id : {0, 12}) {
    if (id > 0) std::filesystem::create_directory(checkpoints.ManifestPath(id));
    const auto host = CoordinatorHost::Open(options_, nullptr, &checkpoints, nullptr);
    ASSERT_TRUE(host.ok()) << host.status();
    EXPECT_EQ((*host)->coordinator().options().job.first_checkpoint, id + 1);
    EXPECT_EQ((*host)->coordinator().options().checkpoints, &checkpoints);
  }
}

}  // namespace
}  // namespace ballast
