// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_snapshot.h"

#include <cstdint>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(SnapshotThreadTest, TakesASnapshotForEachRequest) {
  absl::Notification taken[2];
  size_t count = 0;
  const auto take = [&] {
    taken[count++].Notify();
    return absl::OkStatus();
  };
  const auto on_failure = [](const absl::Status& status, absl::Duration) { ADD_FAILURE() << status; };
  SnapshotThread thread({.take = take, .on_failure = on_failure});
  for (absl::Notification& one : taken) {
    thread.Request();
    one.WaitForNotification();
  }
}

TEST(SnapshotThreadTest, WaitsLongerAfterEachFailureUntilOneSucceeds) {
  absl::Notification succeeded, failed_again;
  int count = 0;
  std::vector<int64_t> delays;
  const auto take = [&] {
    ++count;
    if (count == 5) succeeded.Notify();
    return count == 5 || count > 6 ? absl::OkStatus() : absl::UnavailableError("full");
  };
  const auto on_failure = [&](const absl::Status& status, absl::Duration retry) {
    EXPECT_EQ(status.message(), "full");
    delays.push_back(absl::ToInt64Microseconds(retry));
    if (count == 6) failed_again.Notify();
  };
  SnapshotThread thread({.first_retry = absl::Microseconds(10),
                         .longest_retry = absl::Microseconds(30),
                         .take = take,
                         .on_failure = on_failure});
  thread.Request();
  succeeded.WaitForNotification();
  thread.Request();
  failed_again.WaitForNotification();
  EXPECT_EQ(delays, (std::vector<int64_t>{10, 20, 30, 30, 10}));
}

TEST(SnapshotThreadTest, StopsDuringADelayThatARequestDoesNotShorten) {
  absl::Notification failed;
  int count = 0;
  const auto take = [&] {
    ++count;
    return absl::UnavailableError("full");
  };
  const auto on_failure = [&](const absl::Status&, absl::Duration) { failed.Notify(); };
  {
    SnapshotThread thread({.first_retry = absl::Hours(1), .take = take, .on_failure = on_failure});
    thread.Request();
    failed.WaitForNotification();
    thread.Request();
  }
  EXPECT_EQ(count, 1);
}

}  // namespace

}  // namespace ballast
