// SPDX-License-Identifier: Apache-2.0
#include "client/elements/arrived_elements.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"

namespace ballast {
namespace {

TEST(ArrivedElementsTest, GivesEachPartOnceInOrder) {
  ArrivedElements arrived;
  arrived.Add({100, 50});
  arrived.Add({0, 100});
  EXPECT_EQ(arrived.Take(absl::ZeroDuration())->offset, 100u);
  const auto second = arrived.Take(absl::ZeroDuration());
  EXPECT_EQ(second->offset, 0u);
  EXPECT_EQ(second->elements, 100u);
  EXPECT_FALSE(arrived.Take(absl::Milliseconds(1)).has_value());
}

TEST(ArrivedElementsTest, WaitsForThePartThatComes) {
  ArrivedElements arrived;
  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(5));
    arrived.Add({7, 1});
  });
  EXPECT_EQ(arrived.Take(absl::Minutes(1))->offset, 7u);
  other.join();
}

}  // namespace
}  // namespace ballast
