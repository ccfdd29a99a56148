// SPDX-License-Identifier: Apache-2.0
#include "common/program/signal_watch.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

#include "gtest/gtest.h"

namespace ballast {
namespace {

// Returns whether the future becomes ready within a generous timeout.
template <typename T>
bool Kept(std::future<T>& future) {
  return future.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
}

TEST(SignalWatchTest, CallsForEachSignalAndCountsThem) {
  std::promise<int> promises[2];
  std::future<int> first = promises[0].get_future(), second = promises[1].get_future();
  SignalWatch watch([&](int number, int count) { promises[count - 1].set_value(number); });
  kill(getpid(), SIGTERM);
  ASSERT_TRUE(Kept(first));
  EXPECT_EQ(first.get(), SIGTERM);
  kill(getpid(), SIGINT);
  ASSERT_TRUE(Kept(second));
  EXPECT_EQ(second.get(), SIGINT);
}

TEST(SignalWatchTest, HearsASignalThatAnEarlierThreadTakes) {
  std::promise<void> done, heard;
  std::future<void> ended = done.get_future(), called = heard.get_future();
  std::thread earlier([&] { ended.wait(); });
  {
    SignalWatch watch([&](int, int) { heard.set_value(); });
    pthread_kill(earlier.native_handle(), SIGTERM);
    EXPECT_TRUE(Kept(called));
  }
  done.set_value();
  earlier.join();
}

TEST(SignalWatchTest, CallsForSIGQUITIfItIsWanted) {
  std::promise<void> quit;
  std::future<void> called = quit.get_future();
  SignalWatch watch([](int, int) { FAIL() << "SIGQUIT does not end the process"; }, [&] { quit.set_value(); });
  kill(getpid(), SIGQUIT);
  EXPECT_TRUE(Kept(called));
}

TEST(SignalWatchTest, RestoresWhatTheSignalsDidBefore) {
  signal(SIGTERM, SIG_IGN);
  {
    SignalWatch watch([](int, int) {});
  }
  EXPECT_EQ(signal(SIGTERM, SIG_DFL), SIG_IGN);
}

}  // namespace
}  // namespace ballast
