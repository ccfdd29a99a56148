// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/attack.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <system_error>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

constexpr int kNice = 19;

}  // namespace

void YieldThreadToOthers() { setpriority(PRIO_PROCESS, gettid(), kNice); }

void YieldToOthers() {
  // Priority belongs to a thread, and gRPC started threads before any attack.
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    int id = 0;
    if (absl::SimpleAtoi(task.path().filename().string(), &id)) setpriority(PRIO_PROCESS, id, kNice);
  }
}

uint64_t AttackUntil(absl::Time end, int threads, const std::function<void(int, uint64_t)>& attempt) {
  std::atomic<uint64_t> attempts{0};
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      YieldThreadToOthers();
      for (uint64_t own = 0; absl::Now() < end; ++own) {
        attempt(thread, own);
        attempts.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  return attempts;
}

}  // namespace ballast
