// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/doorbell.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(DoorbellTest, AWaitEndsAtOnceAfterARing) {
  Doorbell bell;
  const uint32_t seen = bell.rings();
  bell.Ring();
  const absl::Time begun = absl::Now();
  bell.Wait(seen, absl::Minutes(10));
  EXPECT_LT(absl::Now() - begun, absl::Minutes(5));
}

TEST(DoorbellTest, AWaitEndsWithItsTimeout) {
  Doorbell bell;
  const absl::Time begun = absl::Now();
  bell.Wait(bell.rings(), absl::Milliseconds(20));
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(15));
  bell.Wait(bell.rings(), absl::Milliseconds(-1));
}

TEST(DoorbellTest, AListenerHearsRingsThatComeSoonAndLate) {
  Doorbell there, back;
  constexpr int kRings = 3000;
  std::thread other([&] {
    DoorbellListener listener(there);
    for (uint32_t seen = 0; seen < kRings; ++seen) {
      while (there.rings() == seen) listener.Wait(seen, absl::Minutes(1));
      // Now and then a pause in which the listeners go to sleep.
      if (seen % 1000 == 0) absl::SleepFor(absl::Milliseconds(5));
      back.Ring();
    }
  });
  DoorbellListener listener(back);
  const absl::Time begun = absl::Now();
  for (uint32_t seen = 0; seen < kRings; ++seen) {
    there.Ring();
    while (back.rings() == seen) listener.Wait(seen, absl::Minutes(1));
  }
  other.join();
  // A lost ring would cost a minute.
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
  listener.Wait(back.rings(), absl::Milliseconds(-1));
}

TEST(DoorbellTest, NoRingIsLost) {
  struct Table {
    Doorbell there, back;
    std::atomic<uint32_t> ball{0};
  } table;
  constexpr uint32_t kRounds = 20000;
  // A lost ring would cost a wait its whole timeout.
  const auto play = [&](Doorbell& mine, Doorbell& other, uint32_t first) {
    for (uint32_t turn = first; turn < kRounds; turn += 2) {
      while (true) {
        const uint32_t seen = mine.rings();
        if (table.ball.load() == turn) break;
        mine.Wait(seen, absl::Minutes(1));
      }
      table.ball.store(turn + 1);
      other.Ring();
    }
  };
  const absl::Time begun = absl::Now();
  std::thread second([&] { play(table.back, table.there, 1); });
  play(table.there, table.back, 0);
  second.join();
  EXPECT_EQ(table.ball.load(), kRounds);
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
}

TEST(DoorbellTest, RingsReachAnotherProcess) {
  void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const bells = new (memory) Doorbell[2];
  const pid_t child = fork();
  if (child == 0) {
    const uint32_t seen = 0;
    while (bells[0].rings() == seen) bells[0].Wait(seen, absl::Minutes(1));
    bells[1].Ring();
    _exit(0);
  }
  bells[0].Ring();
  const absl::Time begun = absl::Now();
  while (bells[1].rings() == 0) bells[1].Wait(0, absl::Minutes(1));
  EXPECT_LT(absl::Now() - begun, absl::Seconds(30));
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  munmap(memory, 4096);
}

}  // namespace
}  // namespace ballast
