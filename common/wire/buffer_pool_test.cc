// SPDX-License-Identifier: Apache-2.0
#include "common/wire/buffer_pool.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr size_t kBytes = 1 << 20;

uintptr_t Offset(absl::string_view bytes) { return reinterpret_cast<uintptr_t>(bytes.data()) % BufferPool::kAlignment; }

TEST(BufferPoolTest, ACopyIsItsOwnAndAlignedAsWhatWasCopied) {
  BufferPool pool(kBytes, 2 * kBytes);
  alignas(64) static char message[kBytes];
  for (const size_t size : {0, 1, 63, 64, 65, 100000, 1000000}) {
    for (const size_t ahead : {0, 1, 17, 63}) {
      std::fill(message, message + kBytes, 'a');
      const BufferPool::Buffer copy = pool.Copy({message + ahead, size});
      std::fill(message, message + kBytes, 'b');
      EXPECT_EQ(copy.bytes(), std::string(size, 'a'));
      EXPECT_EQ(Offset(copy.bytes()), ahead);
    }
  }
}

TEST(BufferPoolTest, ACopyKnowsWhetherItsFloatsAreFinite) {
  BufferPool pool(kBytes, 2 * kBytes);
  alignas(64) float floats[100] = {};
  const absl::string_view message(reinterpret_cast<const char*>(floats), sizeof(floats));
  const BufferPool::Buffer finite = pool.Copy(message);
  EXPECT_TRUE(finite.HasFiniteFloats(finite.bytes()));
  EXPECT_TRUE(finite.HasFiniteFloats(finite.bytes().substr(8, 8)));
  // Others were not looked at.
  EXPECT_FALSE(finite.HasFiniteFloats(finite.bytes().substr(1, 8)));
  EXPECT_FALSE(finite.HasFiniteFloats(message));
  floats[99] = std::numeric_limits<float>::quiet_NaN();
  const BufferPool::Buffer bad = pool.Copy(message);
  EXPECT_FALSE(bad.HasFiniteFloats(bad.bytes()));
}

TEST(BufferPoolTest, FloatsAreCheckedAsTheyArrive) {
  constexpr size_t kSize = 400;
  BufferPool pool(kBytes, 2 * kBytes);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // The byte `lead` is aligned, and floats begin there.
  for (const size_t lead : {0, 1, 17, 20}) {
    const size_t last = lead + (kSize - lead) / sizeof(float) * sizeof(float) - sizeof(float);
    for (const size_t bad : {size_t{0}, lead, lead + 8, last}) {
      BufferPool::Buffer buffer = pool.Get(kSize, lead);
      std::fill(buffer.data(), buffer.data() + kSize, 'a');
      const absl::string_view floats = buffer.bytes().substr(lead);
      EXPECT_FALSE(buffer.HasFiniteFloats(floats));
      if (bad >= lead) std::memcpy(buffer.data() + bad, &nan, sizeof(nan));
      for (const size_t end : {size_t{0}, size_t{2}, lead + 3, lead + 5, lead + 100, last + 3}) {
        buffer.CheckFloats(end);
        EXPECT_FALSE(buffer.HasFiniteFloats(floats));
      }
      buffer.CheckFloats(kSize);
      const bool good = bad < lead;
      EXPECT_EQ(buffer.HasFiniteFloats(floats.substr(0, last + sizeof(float) - lead)), good) << lead << " " << bad;
    }
  }
}

TEST(BufferPoolTest, MemoryIsInTheCachesUntilMessagesHaveUsedMuchElse) {
  BufferPool pool(kBytes, 2 * kBytes);
  EXPECT_FALSE(pool.Get(kBytes).was_in_caches());
  EXPECT_TRUE(pool.Get(kBytes).was_in_caches());
  // Leaves the memory above free, which is too large for these.
  const auto use_other_memory = [&](size_t bytes) {
    for (size_t used = 0; used < bytes; used += kBytes / 2) pool.Get(kBytes / 2);
  };
  use_other_memory(BufferPool::kCachedBytes);
  EXPECT_TRUE(pool.Get(kBytes).was_in_caches());
  use_other_memory(BufferPool::kCachedBytes + kBytes / 2);
  EXPECT_FALSE(pool.Get(kBytes).was_in_caches());
}

TEST(BufferPoolTest, MemoryOfAMessageThatWasKeptIsNoLongerInTheCaches) {
  BufferPool pool(kBytes, 2 * kBytes);
  BufferPool::Buffer kept = pool.Get(kBytes);
  for (size_t used = 0; used <= BufferPool::kCachedBytes; used += kBytes / 2) pool.Get(kBytes / 2);
  kept = {};
  EXPECT_FALSE(pool.Get(kBytes).was_in_caches());
}

TEST(BufferPoolTest, AMessageThatWillBeKeptLeavesMemoryInTheCachesForOthers) {
  constexpr size_t kSize = 160 << 10;
  BufferPool pool(kBytes, kBytes);
  BufferPool::Buffer first = pool.Get(kSize), second = pool.Get(kSize), third = pool.Get(kSize);
  const void *const first_at = first.data(), *const second_at = second.data(), *const third_at = third.data();
  // Given back in another order: what counts is when the memory was taken.
  third = {};
  first = {};
  second = {};
  BufferPool::Buffer kept = pool.Get(kSize, 0, BufferPool::Stay::kLong);
  BufferPool::Buffer soon_gone = pool.Get(kSize, 0, BufferPool::Stay::kShort);
  EXPECT_EQ(kept.data(), first_at);
  EXPECT_EQ(soon_gone.data(), third_at);
  kept = {};
  alignas(BufferPool::kAlignment) static const char message[kSize] = {};
  EXPECT_EQ(pool.Copy({message, kSize}, BufferPool::Stay::kLong).bytes().data(), second_at);
}

TEST(BufferPoolTest, TheWantedByteIsAligned) {
  BufferPool pool(kBytes, 2 * kBytes);
  for (const size_t size : {0, 1, 100, 100000, 1000000}) {
    for (const size_t lead : {0, 1, 17, 63}) {
      BufferPool::Buffer buffer = pool.Get(size, lead);
      std::fill(buffer.data(), buffer.data() + size, 'a');
      EXPECT_EQ(buffer.bytes(), std::string(size, 'a'));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data() + lead) % BufferPool::kAlignment, 0);
    }
  }
}

TEST(BufferPoolTest, LargeBuffersAreUsedAgain) {
  BufferPool pool(kBytes, kBytes);
  const std::string message(kBytes / 2, 'x');
  const void* first = nullptr;
  {
    BufferPool::Buffer copy = pool.Copy(message);
    first = copy.bytes().data();
    copy = {};
    EXPECT_TRUE(copy.bytes().empty());
  }
  EXPECT_EQ(pool.Copy(message).bytes().data(), first);
}

TEST(BufferPoolTest, MemoryGoesToMessagesOfAboutItsSizeTheLatestFirst) {
  constexpr size_t kSize = 160 << 10;
  BufferPool pool(kBytes, kBytes);
  BufferPool::Buffer first = pool.Get(kSize), second = pool.Get(kSize), large = pool.Get(2 * kSize);
  const void *const at = second.data(), *const large_at = large.data();
  EXPECT_GE(first.capacity(), kSize);
  EXPECT_LE(first.capacity(), kSize + kSize / 8);
  first = {};
  second = {};
  large = {};
  EXPECT_EQ(pool.free_bytes(), 4 * kSize);
  const BufferPool::Buffer smaller = pool.Get(kSize - kSize / 10), half = pool.Get(kSize / 2);
  EXPECT_EQ(smaller.bytes().data(), at);
  EXPECT_EQ(pool.free_bytes(), 3 * kSize);
  EXPECT_EQ(pool.Get(2 * kSize).data(), large_at);
}

TEST(BufferPoolTest, KeepsOnlySoMuchAndForgetsTheOldestFirst) {
  constexpr size_t kSize = 128 << 10;
  BufferPool pool(kBytes, 3 * kSize);
  BufferPool::Buffer old = pool.Get(2 * kSize), first = pool.Get(kSize), second = pool.Get(kSize);
  const void *const first_at = first.data(), *const second_at = second.data();
  old = {};
  first = {};
  EXPECT_EQ(pool.free_bytes(), 3 * kSize);
  second = {};
  EXPECT_EQ(pool.free_bytes(), 2 * kSize);
  const BufferPool::Buffer again = pool.Get(kSize), other = pool.Get(kSize);
  EXPECT_EQ(again.bytes().data(), second_at);
  EXPECT_EQ(other.bytes().data(), first_at);
}

TEST(BufferPoolTest, ABufferMayOutliveItsPool) {
  BufferPool::Buffer copy;
  const std::string message(kBytes / 2, 'x');
  {
    BufferPool pool(kBytes, kBytes);
    copy = pool.Copy(message);
  }
  EXPECT_EQ(copy.bytes(), message);
}

TEST(BufferPoolTest, CopiesWhatIsLargerThanItsBuffers) {
  BufferPool pool(kBytes, kBytes);
  const std::string message(2 * kBytes, 'x');
  EXPECT_EQ(pool.Copy(message).bytes(), message);
}

TEST(BufferPoolTest, CountsTheBytesThatItDoesNotKeep) {
  BufferPool pool(kBytes, kBytes);
  BufferPool::TakeFreedBytes();
  { const BufferPool::Buffer kept = pool.Get(kBytes); }
  EXPECT_EQ(BufferPool::TakeFreedBytes(), 0u);
  { const BufferPool::Buffer first = pool.Get(kBytes), second = pool.Get(kBytes); }
  EXPECT_EQ(BufferPool::TakeFreedBytes(), kBytes);
  EXPECT_EQ(BufferPool::TakeFreedBytes(), 0u);
}

}  // namespace
}  // namespace ballast
