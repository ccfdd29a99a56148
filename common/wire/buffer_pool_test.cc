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
  BufferPool pool(kBytes, 2);
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
  BufferPool pool(kBytes, 2);
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
  BufferPool pool(kBytes, 2);
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

TEST(BufferPoolTest, FloatsAreCheckedAsTheyAreFilledIn) {
  BufferPool pool(kBytes, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const size_t ahead : {0, 3, 7, 64}) {
    for (const size_t size : {size_t{2}, size_t{400}, size_t{2} << 20}) {
      const size_t all = ahead + size + 8, begin = (ahead + 3) / sizeof(float) * sizeof(float);
      // Nowhere, in what was there before, across the beginning of what is filled in, and at its end.
      for (const size_t bad : {all, size_t{0}, ahead / sizeof(float) * sizeof(float), begin + (size - 2) / 4 * 4}) {
        std::string message(all, 'a');
        if (bad + sizeof(nan) <= all) std::memcpy(message.data() + bad, &nan, sizeof(nan));
        BufferPool::Buffer buffer = pool.Get(all);
        std::memcpy(buffer.data(), message.data(), ahead);
        buffer.Fill(ahead, absl::string_view(message).substr(ahead, size));
        EXPECT_FALSE(buffer.HasFiniteFloats(buffer.bytes())) << "the rest is missing";
        std::memcpy(buffer.data() + ahead + size, message.data() + ahead + size, 8);
        buffer.CheckFloats(all);
        EXPECT_EQ(buffer.bytes(), message);
        EXPECT_EQ(buffer.HasFiniteFloats(buffer.bytes().substr(0, all / 4 * 4)), bad == all)
            << ahead << " " << size << " " << bad;
      }
    }
  }
}

TEST(BufferPoolTest, TheWantedByteIsAligned) {
  BufferPool pool(kBytes, 2);
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
  BufferPool pool(kBytes, 1);
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

TEST(BufferPoolTest, CopiesWhatIsLargerThanItsBuffers) {
  BufferPool pool(kBytes, 1);
  const std::string message(2 * kBytes, 'x');
  EXPECT_EQ(pool.Copy(message).bytes(), message);
}

}  // namespace
}  // namespace ballast
