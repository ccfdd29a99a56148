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

// A thread that waits for a bell, and is asleep by now.
class Sleeper {
 public:
  explicit Sleeper(Doorbell& bell) : thread_([this, &bell] { Sleep(bell); }) {
    while (!begun_) absl::SleepFor(absl::Milliseconds(1));
    absl::SleepFor(absl::Milliseconds(20));
  }
  ~Sleeper() { thread_.join(); }

  // Waits for the end of the wait. It must not wait for its timeout.
  void ExpectWoken() {
    const absl::Time begun = absl::Now();
    while (!over_) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_LT(absl::Now() - begun, absl::Seconds(30));
  }
  bool over() const { return over_; }

 private:
  void Sleep(Doorbell& bell) {
    const uint32_t seen = bell.rings();
    begun_ = true;
    bell.Wait(seen, absl::Minutes(1));
    over_ = true;
  }

  std::atomic<bool> begun_{false}, over_{false};
  std::thread thread_;
};

TEST(ParkedSleepersTest, RingsWakeAParkedThreadOnlyOnceItIsBack) {
  Doorbell bell;
  ParkedSleepers parked(bell);
  Sleeper sleeper(bell);
  parked.Park();
  const uint32_t seen = bell.rings();
  bell.Ring();
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(sleeper.over());
  // Who has parked it has not seen that ring.
  parked.Unpark(seen);
  sleeper.ExpectWoken();
}

TEST(ParkedSleepersTest, AThreadThatIsBackHearsTheNextRing) {
  Doorbell bell;
  ParkedSleepers parked(bell);
  Sleeper sleeper(bell);
  parked.Park();
  bell.Ring();
  parked.Unpark(bell.rings());
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(sleeper.over());
  bell.Ring();
  sleeper.ExpectWoken();
}

TEST(ParkedSleepersTest, AThreadThatParksItselfSleepsUntilUnparkedAndARing) {
  Doorbell bell;
  ParkedSleepers parked(bell);
  const uint32_t unparked = parked.unparked();
  std::atomic<bool> over{false};
  std::thread sleeper([&] {
    parked.Wait(unparked, absl::Minutes(1));
    over = true;
  });
  absl::SleepFor(absl::Milliseconds(20));
  bell.Ring();
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(over);
  parked.Unpark(bell.rings());
  bell.Ring();
  sleeper.join();
  const absl::Time begun = absl::Now();
  parked.Wait(unparked, absl::Minutes(1));
  EXPECT_LT(absl::Now() - begun, absl::Seconds(30)) << "it was unparked before it came to sleep";
}

TEST(ParkedSleepersTest, WakeEndsTheWait) {
  Doorbell bell;
  ParkedSleepers parked(bell);
  Sleeper sleeper(bell);
  parked.Park();
  parked.Wake();
  sleeper.ExpectWoken();
}

// Two threads take turns as the one at the bell, while another process' thread would ring.
TEST(ParkedSleepersTest, NoRingIsLost) {
  Doorbell bell, back;
  ParkedSleepers parked(bell);
  constexpr uint32_t kRings = 20000;
  std::atomic<uint32_t> heard{0};
  std::atomic<bool> stop{false};
  const auto hear = [&] {
    const uint32_t rings = bell.rings();
    if (heard.exchange(rings) != rings) back.Ring();
  };
  std::thread resident([&] {
    while (!stop) {
      const uint32_t seen = bell.rings();
      hear();
      bell.Wait(seen, absl::Minutes(1));
    }
  });
  std::thread helper([&] {
    while (!stop) {
      parked.Park();
      uint32_t seen = bell.rings();
      for (int i = 0; i < 3 && !stop; ++i) {
        hear();
        bell.Wait(seen, absl::Milliseconds(1));
        seen = bell.rings();
      }
      hear();
      parked.Unpark(seen);
      std::this_thread::yield();
    }
  });
  const absl::Time begun = absl::Now();
  for (uint32_t ring = 1; ring <= kRings; ++ring) {
    bell.Ring();
    while (heard != ring) {
      const uint32_t seen = back.rings();
      if (heard != ring) back.Wait(seen, absl::Minutes(1));
    }
  }
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
  stop = true;
  bell.Ring();
  helper.join();
  bell.Ring();
  parked.Wake();
  resident.join();
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
