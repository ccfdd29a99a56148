// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace ballast {

int CoreCount() { return std::max(1u, std::thread::hardware_concurrency()); }

void ParallelFor(size_t count, int threads, absl::FunctionRef<void(size_t)> work) {
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t index = next.fetch_add(1); index < count; index = next.fetch_add(1)) work(index);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) others.emplace_back(take);
  take();
  for (std::thread& other : others) other.join();
}

}  // namespace ballast
