// SPDX-License-Identifier: Apache-2.0
#include "common/wire/buffer_pool.h"

#include <cstdint>
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
