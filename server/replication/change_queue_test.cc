// SPDX-License-Identifier: Apache-2.0
#include "server/replication/change_queue.h"

#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// A queue of 100 bytes that holds back responses behind more than 20 bytes.
class ChangeQueueTest : public testing::Test {
 protected:
  void Push(uint64_t position, size_t bytes) { queue_.Push(position, std::string(bytes, 'x')); }
  bool Defer(uint64_t position) {
    ChangeQueue::Done done = [this](const absl::Status&) { ++answered_; };
    return queue_.Defer(position, done);
  }
  // Removes the next change and sends the responses that this releases.
  uint64_t Pop() {
    std::vector<ChangeQueue::Done> released;
    const std::optional<ChangeQueue::Change> change = queue_.Pop(released);
    for (const ChangeQueue::Done& done : released) done(absl::OkStatus());
    return change.has_value() ? change->position : 0;
  }

  ChangeQueue queue_{100, 20};
  int answered_ = 0;
};

TEST_F(ChangeQueueTest, RefusesWhatItHasNoRoomFor) {
  Push(1, 60);
  EXPECT_TRUE(queue_.CheckRoom(40).ok());
  const absl::Status refused = queue_.CheckRoom(41);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), "the standby is 60 bytes behind: got a change of 41 bytes, want at most 100 in all");
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_STANDBY_BEHIND);
  EXPECT_EQ(SubjectOf(refused, "retry_delay_ms"), "200");
  EXPECT_EQ(Pop(), 1);
  EXPECT_TRUE(queue_.CheckRoom(100).ok());
}

TEST_F(ChangeQueueTest, HoldsAnswersBackUntilTheLinkHasCaughtUp) {
  for (const uint64_t position : {7, 8, 9}) Push(position, 10);
  for (const uint64_t position : {6, 7, 8}) EXPECT_FALSE(Defer(position)) << position;
  EXPECT_TRUE(Defer(9));
  Push(10, 1);
  EXPECT_TRUE(Defer(10));
  EXPECT_EQ(Pop(), 7);
  EXPECT_EQ(answered_, 1);
  EXPECT_EQ(Pop(), 8);
  EXPECT_EQ(answered_, 2);
}

TEST_F(ChangeQueueTest, ClearAnswersAllAndForgetsTheBytes) {
  Push(1, 50);
  Push(2, 50);
  EXPECT_TRUE(Defer(2));
  const std::vector<ChangeQueue::Done> released = queue_.Clear();
  EXPECT_EQ(released.size(), 1);
  EXPECT_TRUE(queue_.empty());
  EXPECT_TRUE(queue_.CheckRoom(100).ok());
  EXPECT_EQ(Pop(), 0);
  // Later changes are measured from the new start.
  Push(3, 20);
  EXPECT_FALSE(Defer(3));
}

}  // namespace
}  // namespace ballast
