// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/group_save.h"

#include <atomic>
#include <memory>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::Test;

// A state with newest change `change_`, on a disk that takes as long as the test wants.
class GroupSaveTest : public Test {
 protected:
  GroupSave::Outcome Save() {
    const uint64_t change = change_;
    ++saves_;
    if (absl::Notification* begun = begun_.exchange(nullptr)) begun->Notify();
    if (absl::Notification* go = go_.exchange(nullptr)) go->WaitForNotification();
    return {status_, change};
  }

  GroupSave Make(Executor* executor) {
    return GroupSave(
        executor, [this] { return Save(); }, [this] { ++settled_; });
  }

  std::atomic<uint64_t> change_{0};
  std::atomic<int> saves_{0}, settled_{0};
  absl::Status status_;
  std::atomic<absl::Notification*> begun_{nullptr}, go_{nullptr};
};

TEST_F(GroupSaveTest, WithoutAnExecutorASaveIsOverWhenAwaitReturns) {
  GroupSave saves = Make(nullptr);
  change_ = 3;
  absl::Status saved = absl::UnknownError("waits");
  saves.Await(3, [&](absl::Status status) { saved = status; });
  EXPECT_EQ(saved, absl::OkStatus());
  EXPECT_EQ(saves.saved(), 3u);
  EXPECT_EQ(settled_, 1);
}

TEST_F(GroupSaveTest, WhatIsSavedAlreadyNeedsNoSave) {
  GroupSave saves = Make(nullptr);
  change_ = 3;
  saves.Await(3, [](absl::Status) {});
  absl::Status saved = absl::UnknownError("waits");
  saves.Await(2, [&](absl::Status status) { saved = status; });
  EXPECT_EQ(saved, absl::OkStatus());
  EXPECT_EQ(saves_, 1);
}

TEST_F(GroupSaveTest, NobodyIsHeldUpWhileADiskIsSlowAndTheNextSaveServesAllWhoCame) {
  auto executor = std::make_unique<Executor>(1, 10);
  absl::Notification begun, go;
  begun_ = &begun;
  go_ = &go;
  GroupSave saves = Make(executor.get());
  change_ = 1;
  std::atomic<int> done{0};
  const auto count = [&](absl::Status status) {
    EXPECT_EQ(status, absl::OkStatus());
    ++done;
  };
  saves.Await(1, count);
  begun.WaitForNotification();
  for (uint64_t change = 2; change <= 50; ++change) {
    change_ = change;
    saves.Await(change, count);
  }
  EXPECT_EQ(done, 0) << "nothing is on the disk yet, and no call has blocked";
  go.Notify();
  executor.reset();
  EXPECT_EQ(done, 50);
  EXPECT_EQ(saves_, 2);
}

TEST_F(GroupSaveTest, AFailureIsToldToAllItMeetsAndTheNextWaitSavesAgain) {
  GroupSave saves = Make(nullptr);
  change_ = 1;
  status_ = absl::ResourceExhaustedError("the disk is full");
  absl::Status saved;
  saves.Await(1, [&](absl::Status status) { saved = status; });
  EXPECT_EQ(saved, status_);
  EXPECT_EQ(saves.saved(), 0u);
  status_ = absl::OkStatus();
  saves.Await(1, [&](absl::Status status) { saved = status; });
  EXPECT_EQ(saved, absl::OkStatus());
}

TEST_F(GroupSaveTest, WhoIsCalledBackMayWaitAgain) {
  GroupSave saves = Make(nullptr);
  change_ = 1;
  absl::Status second = absl::UnknownError("waits");
  saves.Await(1, [&](absl::Status) {
    change_ = 2;
    saves.Await(2, [&](absl::Status status) { second = status; });
  });
  EXPECT_EQ(second, absl::OkStatus());
  EXPECT_EQ(saves_, 2);
}

TEST_F(GroupSaveTest, AnExecutorThatTakesNothingIsAFailure) {
  Executor executor(1, 0);
  GroupSave saves = Make(&executor);
  change_ = 1;
  absl::Status saved;
  saves.Await(1, [&](absl::Status status) { saved = status; });
  EXPECT_EQ(saved.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ballast
