// SPDX-License-Identifier: Apache-2.0
#include "client/memory_hold.h"

#include <future>
#include <optional>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(MemoryHoldTest, CallsAtOnceWhenNothingIsLent) {
  MemoryHold hold;
  bool called = false;
  hold.WhenBack([&] { called = true; });
  EXPECT_TRUE(called);
}

TEST(MemoryHoldTest, CallsWhenTheLastCopyIsBack) {
  MemoryHold hold;
  const char memory[] = "0123456789012345678901234567890123456789";
  std::optional<grpc::Slice> first = hold.Lend(memory, sizeof(memory));
  std::optional<grpc::Slice> copy = *first;
  EXPECT_EQ(first->begin(), reinterpret_cast<const uint8_t*>(memory));
  std::promise<void> back;
  std::future<void> future = back.get_future();
  hold.WhenBack([&] { back.set_value(); });
  first.reset();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
  copy.reset();
  EXPECT_EQ(future.wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

}  // namespace
}  // namespace ballast
