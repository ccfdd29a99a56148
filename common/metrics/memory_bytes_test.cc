// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/memory_bytes.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(MemoryBytesTest, TextNamesEachUseThatThereIs) {
  EXPECT_EQ(MemoryText({.weights = 4 << 20, .gradients = 4 << 20, .activations = 512}),
            "8.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 512 B");
  EXPECT_EQ(MemoryText({}), "0 B");
}

TEST(MemoryBytesTest, PinnedMemoryIsAPartOfStaging) {
  EXPECT_EQ(MemoryText({.weights = 1024, .workspace = 2048, .staging = 1024, .pinned = 512}),
            "4.0 KiB: weights 1.0 KiB, workspace 2.0 KiB, staging 1.0 KiB (pinned 512 B)");
}

}  // namespace
}  // namespace ballast
