// SPDX-License-Identifier: Apache-2.0
#include "bench/rows/random_lines.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/tables/row_hash.h"
#include "server/tables/range/page_arena.h"

namespace ballast {
namespace {

constexpr uint64_t kLine = PageArena::kLineBytes;
// Loads between two looks at the clock.
constexpr int kLoads = 1 << 18;
// Index lines that a hit touches, on average, because some hashes are past their home lines.
constexpr double kIndexLines = 1.1;

// Owns zeroed pages for lines. Thread safety: immutable.
class Pages {
 public:
  explicit Pages(uint64_t bytes)
      : bytes_((bytes / PageArena::kPageBytes + 2) * PageArena::kPageBytes),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (ok()) madvise(memory_, bytes_, MADV_HUGEPAGE);
  }
  ~Pages() {
    if (ok()) munmap(memory_, bytes_);
  }
  Pages(const Pages&) = delete;

  bool ok() const { return memory_ != MAP_FAILED; }
  char* begin() const { return static_cast<char*>(memory_); }

 private:
  const uint64_t bytes_;
  void* const memory_;
};

template <int kChains>
RandomLines Measure(const char* lines, uint64_t count, double seconds) {
  uint64_t chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = RowHash(i, 99);
  const double start = ThreadCpuSeconds();
  uint64_t loads = 0;
  double spent = 0;
  while (spent < seconds) {
    for (int step = 0; step < kLoads / kChains; ++step) {
      for (uint64_t& chain : chains) {
        const uint64_t line = static_cast<uint64_t>((static_cast<unsigned __int128>(chain) * count) >> 64);
        uint64_t value;
        std::memcpy(&value, lines + line * kLine, sizeof(value));
        chain = (chain + value) * 6364136223846793005 + 1442695040888963407;
      }
    }
    loads += kLoads;
    spent = ThreadCpuSeconds() - start;
  }
  // Keeps the loads from being removed.
  volatile uint64_t sink = 0;
  for (uint64_t chain : chains) sink = sink + chain;
  return {kChains, static_cast<double>(loads) / spent};
}

}  // namespace

absl::StatusOr<std::vector<RandomLines>> MeasureRandomLines(uint64_t bytes, double seconds) {
  const Pages pages(bytes);
  if (!pages.ok()) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes of lines"));
  const uint64_t count = std::max<uint64_t>(1, bytes / kLine);
  for (uint64_t i = 0; i < count; ++i) pages.begin()[i * kLine] = 1;
  return std::vector<RandomLines>{Measure<1>(pages.begin(), count, seconds), Measure<4>(pages.begin(), count, seconds),
                                  Measure<8>(pages.begin(), count, seconds), Measure<16>(pages.begin(), count, seconds),
                                  Measure<32>(pages.begin(), count, seconds)};
}

double BestRate(const std::vector<RandomLines>& lines) {
  double best = 0;
  for (const RandomLines& one : lines) best = std::max(best, one.rate);
  return best;
}

double LinesOfRow(const RowLayout& layout) {
  const uint64_t used = layout.floats() * sizeof(float) + sizeof(RowState);
  uint64_t lines = 0;
  // After 64 rows, the offset within a line repeats.
  for (uint64_t row = 0; row < kLine; ++row) lines += (row * layout.bytes() % kLine + used + kLine - 1) / kLine;
  return static_cast<double>(lines) / kLine;
}

double LinesPerPull(const RowLayout& layout) { return kIndexLines + LinesOfRow(layout); }

double LinesPerPush(const RowLayout& layout) { return kIndexLines + 2 * LinesOfRow(layout); }

double ThreadCpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace ballast
