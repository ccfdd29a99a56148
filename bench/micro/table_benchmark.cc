// SPDX-License-Identifier: Apache-2.0
// Measures the rows of a sparse table that one core pulls and pushes, next to the random cache lines that it can read
// and to other maps with the same rows and optimizer.
//
//   table_benchmark ROWS DIM ZIPF [MESSAGE_ROWS]      ZIPF: 0 for uniform, otherwise an exponent above 1
//
// Times are CPU time of the one thread; each figure is the median over messages.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/random/zipf_distribution.h"
#include "common/tables/row_hash.h"
#include "server/tables/range/page_arena.h"
#include "server/tables/range/row_segments.h"
#include "server/tables/sparse_table.h"

#if __has_include(<libcuckoo/cuckoohash_map.hh>)
#include <libcuckoo/cuckoohash_map.hh>
#define HAVE_LIBCUCKOO
#endif

namespace ballast {
namespace {

constexpr size_t kGroup = 16;

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

class ZeroInitializer : public InitialRows {
 public:
  void Fill(uint64_t, absl::Span<float> weights) const override { std::fill(weights.begin(), weights.end(), 0.0f); }
};

// Row-wise Adagrad: the slot s adds the mean of g^2, and w -= rate * g / sqrt(s).
class Adagrad : public RowOptimizer {
 public:
  int SlotFloats(int) const override { return 1; }
  void Apply(int dim, float scale, absl::Span<const RowUpdate> rows) const override {
    for (const RowUpdate& update : rows) {
      float sums[4] = {};
      for (int i = 0; i < dim; ++i) sums[i % 4] += update.gradient[i] * update.gradient[i];
      float& slot = update.row[dim];
      slot += (sums[0] + sums[1] + sums[2] + sums[3]) * scale * scale / static_cast<float>(dim);
      const float rate = update.learning_rate * scale / (std::sqrt(slot) + 1e-8f);
      for (int i = 0; i < dim; ++i) update.row[i] -= rate * update.gradient[i];
    }
  }
  float LearningRate(uint64_t, std::optional<double>) const override { return 0.01f; }
};

// A table under test.
class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual void Pull(const BatchPull& pull) = 0;
  virtual void Push(const BatchPush& push) = 0;
  // 0 if unknown.
  virtual uint64_t MemoryBytes() const = 0;
};

class Ballast : public Contestant {
 public:
  Ballast(uint64_t, int dim) : table_(&arena_, {dim, 1, 12, 0, 4096}) {}
  void Pull(const BatchPull& pull) override { table_.Pull(pull); }
  void Push(const BatchPush& push) override { table_.Push(push); }
  uint64_t MemoryBytes() const override { return table_.memory_bytes() + arena_.page_bytes() - arena_.segment_bytes(); }

 private:
  PageArena arena_{uint64_t{10} << 30};
  SparseTable table_;
};

struct FlatMap {
  explicit FlatMap(uint64_t rows) { map.reserve(rows); }
  uint32_t Find(uint64_t hash) const {
    const auto found = map.find(hash);
    return found == map.end() ? RowIndex::kNoPlace : found->second;
  }
  void Insert(uint64_t hash, uint32_t place) { map.emplace(hash, place); }
  uint64_t MemoryBytes() const { return map.capacity() * (sizeof(std::pair<uint64_t, uint32_t>) + 1); }
  absl::flat_hash_map<uint64_t, uint32_t> map;
};

#ifdef HAVE_LIBCUCKOO
struct CuckooMap {
  explicit CuckooMap(uint64_t rows) : map(rows) {}
  uint32_t Find(uint64_t hash) const {
    uint32_t place;
    return map.find(hash, place) ? place : RowIndex::kNoPlace;
  }
  void Insert(uint64_t hash, uint32_t place) { map.insert(hash, place); }
  uint64_t MemoryBytes() const { return map.bucket_count() * 4 * (sizeof(std::pair<uint64_t, uint32_t>) + 2); }
  libcuckoo::cuckoohash_map<uint64_t, uint32_t> map;
};
#endif

// Another map from hashes to the same rows, one hash after the other, and the optimizer for 16 rows at once.
template <typename Map>
class WithMap : public Contestant {
 public:
  WithMap(uint64_t rows, int dim) : layout_(dim, 1), map_(rows), rows_(&arena_, layout_) {}

  void Pull(const BatchPull& pull) override {
    for (size_t i = 0; i < pull.hashes.size(); ++i) {
      const float* row = rows_.At(map_.Find(pull.hashes[i]));
      std::copy_n(row, layout_.dim(), pull.values + i * layout_.dim());
      pull.versions[i] = layout_.State(row).version;
    }
  }

  void Push(const BatchPush& push) override {
    RowUpdate updates[kGroup];
    for (size_t begin = 0; begin < push.hashes.size(); begin += kGroup) {
      const size_t count = std::min(kGroup, push.hashes.size() - begin);
      for (size_t i = 0; i < count; ++i) {
        float* row = FindOrCreate(push.hashes[begin + i]);
        updates[i] = {row, push.gradients + (begin + i) * layout_.dim(), ++layout_.State(row).version, 0.01f};
        layout_.State(row).last_step = push.step;
      }
      push.optimizer->Apply(layout_.dim(), 1, absl::MakeConstSpan(updates, count));
    }
  }

  uint64_t MemoryBytes() const override { return map_.MemoryBytes() + rows_.memory_bytes(); }

 private:
  float* FindOrCreate(uint64_t hash) {
    const uint32_t found = map_.Find(hash);
    if (found != RowIndex::kNoPlace) return rows_.At(found);
    const uint32_t place = rows_.Allocate().value();
    map_.Insert(hash, place);
    std::fill_n(rows_.At(place), layout_.bytes() / sizeof(float), 0.0f);
    return rows_.At(place);
  }

  const RowLayout layout_;
  PageArena arena_{uint64_t{10} << 30};
  Map map_;
  RowSegments rows_;
};

// Random lines per second from `bytes` on 2 MiB pages, with that many loads in flight: as many chains, in each of which
// a line's address depends on the line before it.
template <int kChains>
double LinesPerSecond(const char* lines, uint64_t count) {
  uint64_t chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = RowHash(i, 99);
  constexpr int kSteps = 4'000'000 / kChains;
  const double start = CpuSeconds();
  for (int step = 0; step < kSteps; ++step) {
    for (uint64_t& chain : chains) {
      const uint64_t line = static_cast<uint64_t>((static_cast<unsigned __int128>(chain) * count) >> 64);
      uint64_t value;
      std::memcpy(&value, lines + line * 64, sizeof(value));
      chain = (chain + value) * 6364136223846793005 + 1442695040888963407;
    }
  }
  const double seconds = CpuSeconds() - start;
  volatile uint64_t sink = 0;
  for (uint64_t chain : chains) sink = sink + chain;
  return kSteps * kChains / seconds;
}

// The best figure, and a line with all of them.
double MeasureLimit(uint64_t bytes) {
  const uint64_t page = PageArena::kPageBytes;
  const uint64_t mapped = (bytes / page + 2) * page;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  madvise(memory, mapped, MADV_HUGEPAGE);
  char* lines = static_cast<char*>(memory);
  for (uint64_t i = 0; i < bytes; i += 64) lines[i] = 1;
  const uint64_t count = bytes / 64;
  const double figures[] = {LinesPerSecond<1>(lines, count), LinesPerSecond<4>(lines, count),
                            LinesPerSecond<8>(lines, count), LinesPerSecond<16>(lines, count),
                            LinesPerSecond<32>(lines, count)};
  std::printf("limit: %.0f MiB, M lines/s with 1, 4, 8, 16, 32 in flight:", bytes / 1048576.0);
  for (double figure : figures) std::printf(" %.1f", figure / 1e6);
  std::printf("\n");
  munmap(memory, mapped);
  return *std::max_element(std::begin(figures), std::end(figures));
}

using Message = std::vector<uint64_t>;

std::vector<Message> DrawMessages(uint64_t rows, double zipf, size_t message_rows) {
  std::mt19937_64 random(5);
  std::vector<Message> messages(40);
  for (Message& message : messages) {
    absl::flat_hash_set<uint64_t> hashes;
    absl::zipf_distribution<uint64_t> skewed(rows - 1, zipf > 1 ? zipf : 2);
    while (hashes.size() < message_rows) hashes.insert(RowHash(zipf > 1 ? skewed(random) : random() % rows, 1));
    message.assign(hashes.begin(), hashes.end());
    std::sort(message.begin(), message.end());
  }
  return messages;
}

// Lines of an average row, if it starts anywhere that its layout allows.
double LinesOfRow(const RowLayout& layout) {
  const size_t used = layout.floats() * sizeof(float) + sizeof(RowState);
  double lines = 0;
  for (int row = 0; row < 64; ++row) lines += (row * layout.bytes() % 64 + used + 63) / 64;
  return lines / 64;
}

struct Run {
  uint64_t rows;
  int dim;
  size_t message_rows;
  std::vector<Message> messages;
  double limit;
};

void Measure(const std::string& name, Contestant& contestant, const Run& run) {
  const Adagrad optimizer;
  const ZeroInitializer initializer;
  std::vector<float> gradients(run.message_rows * run.dim, 0.01f), values(run.message_rows * run.dim);
  std::vector<uint32_t> versions(run.message_rows);
  uint32_t step = 0;
  const auto push = [&](const Message& hashes) {
    contestant.Push({hashes, gradients.data(), {}, 1, 0.01f, false, ++step, &optimizer, &initializer});
  };
  const auto time = [](absl::FunctionRef<void()> call) {
    const double start = CpuSeconds();
    call();
    return CpuSeconds() - start;
  };
  std::vector<double> creates, pulls, pushes;
  for (uint64_t id = 0; id < run.rows; id += run.message_rows) {
    Message hashes;
    for (uint64_t i = id; i < std::min(id + run.message_rows, run.rows); ++i) hashes.push_back(RowHash(i, 1));
    std::sort(hashes.begin(), hashes.end());
    creates.push_back(time([&] { push(hashes); }));
  }
  for (int round = 0; round < 3; ++round) {
    for (const Message& hashes : run.messages) {
      pulls.push_back(time([&] { contestant.Pull({hashes, &initializer, values.data(), versions.data()}); }));
    }
    for (const Message& hashes : run.messages) pushes.push_back(time([&] { push(hashes); }));
  }
  const double lines = LinesOfRow(RowLayout(run.dim, 1));
  const double pulled = run.message_rows / Median(pulls), pushed = run.message_rows / Median(pushes);
  const double bytes = static_cast<double>(contestant.MemoryBytes()) / run.rows;
  std::printf(
      "%-8s M rows/s: pull %.2f (%.2f of the limit) push %.2f (%.2f) create %.2f, slowest create %.2f ms more than the "
      "median; bytes per row %.1f, %.2f of bare weights\n",
      name.c_str(), pulled / 1e6, pulled * (1.1 + lines) / run.limit, pushed / 1e6,
      pushed * (1.1 + 2 * lines) / run.limit, run.message_rows / Median(creates) / 1e6,
      1e3 * (*std::max_element(creates.begin(), creates.end()) - Median(creates)), bytes, bytes / (4.0 * run.dim));
  std::fflush(stdout);
}

template <typename T>
void MeasureNew(const std::string& name, const Run& run) {
  const auto contestant = std::make_unique<T>(run.rows, run.dim);
  Measure(name, *contestant, run);
}

int Main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: table_benchmark ROWS DIM ZIPF [MESSAGE_ROWS]\n");
    return 2;
  }
  Run run;
  run.rows = std::strtoull(argv[1], nullptr, 10);
  run.dim = std::atoi(argv[2]);
  const double zipf = std::atof(argv[3]);
  run.message_rows = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : std::min<uint64_t>(50'000, run.rows / 4);
  run.messages = DrawMessages(run.rows, zipf, run.message_rows);
  std::printf("rows %.3g, dim %d, Zipf %.2f, messages of %zu rows\n", static_cast<double>(run.rows), run.dim, zipf,
              run.message_rows);
  run.limit = MeasureLimit(run.rows * (RowLayout(run.dim, 1).bytes() + 20));
  MeasureNew<Ballast>("ballast", run);
  MeasureNew<WithMap<FlatMap>>("absl", run);
#ifdef HAVE_LIBCUCKOO
  MeasureNew<WithMap<CuckooMap>>("libcuckoo", run);
#endif
  return 0;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) { return ballast::Main(argc, argv); }
