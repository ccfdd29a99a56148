// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/use_counts.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// Counts of each id. If the range has a limit on rows, four times as many ids may wait; those with the fewest uses are
// forgotten first.
class ExactUses : public UseCounts {
 public:
  explicit ExactUses(uint64_t max_rows) : max_waiting_(4 * max_rows) {}

  uint32_t Count(uint64_t hash, uint32_t uses, const RowTime& time) override {
    Waiting& waiting = ids_[hash];
    if (time.HasExpired(waiting.last_step)) waiting.uses = 0;
    waiting.uses = std::min(waiting.uses + uses, kMostUses);
    waiting.last_step = time.now;
    const uint32_t now = waiting.uses;
    if (ids_.size() >= next_sweep_) {
      absl::erase_if(ids_, [&](const auto& id) { return time.HasExpired(id.second.last_step); });
      next_sweep_ = std::max(kFirstSweep, 2 * ids_.size());
    }
    if (max_waiting_ > 0 && ids_.size() > max_waiting_) Trim(time);
    return now;
  }

  void Forget(uint64_t hash) override { ids_.erase(hash); }

  uint64_t waiting() const override { return ids_.size(); }

  void CountByUses(std::vector<uint64_t>& by_uses) const override {
    for (const auto& [hash, waiting] : ids_) {
      if (waiting.uses > by_uses.size()) by_uses.resize(waiting.uses);
      ++by_uses[waiting.uses - 1];
    }
  }

  uint64_t memory_bytes() const override { return ids_.capacity() * (sizeof(Saved) + 1); }

  std::string Save() const override {
    std::vector<Saved> saved;
    saved.reserve(ids_.size());
    for (const auto& [hash, waiting] : ids_) saved.push_back({hash, waiting});
    std::sort(saved.begin(), saved.end(), [](const Saved& a, const Saved& b) { return a.hash < b.hash; });
    return std::string(reinterpret_cast<const char*>(saved.data()), saved.size() * sizeof(Saved));
  }

  absl::Status Restore(absl::string_view bytes) override {
    if (bytes.size() % sizeof(Saved) != 0) {
      return absl::DataLossError(
          absl::StrCat("counts of uses: got ", bytes.size(), " bytes, want a multiple of ", sizeof(Saved)));
    }
    ids_.clear();
    for (size_t at = 0; at < bytes.size(); at += sizeof(Saved)) {
      Saved saved;
      std::memcpy(&saved, bytes.data() + at, sizeof(saved));
      if (saved.waiting.uses == 0 || saved.waiting.uses > kMostUses) {
        return absl::DataLossError(absl::StrCat("counts of uses: got ", saved.waiting.uses, ", want 1 to ", kMostUses));
      }
      ids_[saved.hash] = saved.waiting;
    }
    return absl::OkStatus();
  }

 private:
  static constexpr uint32_t kMostUses = 65535;
  static constexpr size_t kFirstSweep = 1024;

  struct Waiting {
    uint32_t uses = 0;
    uint32_t last_step = 0;
  };
  struct Saved {
    uint64_t hash;
    Waiting waiting;
  };
  static_assert(sizeof(Saved) == 16);

  // Forgets a tenth of the ids that may wait, or more.
  void Trim(const RowTime& time) {
    absl::erase_if(ids_, [&](const auto& id) { return time.HasExpired(id.second.last_step); });
    if (ids_.size() <= max_waiting_) return;
    std::vector<Saved> saved;
    for (const auto& [hash, waiting] : ids_) saved.push_back({hash, waiting});
    const size_t victims = ids_.size() - max_waiting_ * 9 / 10;
    const auto before = [&](const Saved& a, const Saved& b) {
      return std::tuple(a.waiting.uses, -time.Since(a.waiting.last_step), a.hash) <
             std::tuple(b.waiting.uses, -time.Since(b.waiting.last_step), b.hash);
    };
    std::nth_element(saved.begin(), saved.begin() + victims, saved.end(), before);
    for (size_t i = 0; i < victims; ++i) ids_.erase(saved[i].hash);
  }

  const uint64_t max_waiting_;
  absl::flat_hash_map<uint64_t, Waiting> ids_;
  size_t next_sweep_ = kFirstSweep;
};

// A count-min sketch in lines of 128 counters of 4 bits: an id has four counters in one line, and the smallest is an
// upper bound of its uses. A use raises only the counters that are smallest (conservative update; Estan and Varghese,
// "New Directions in Traffic Measurement and Accounting", 2002). All counters are halved after a while (Einziger,
// Friedman and Manes, "TinyLFU", 2017). Lines double with the number of ids.
class SketchedUses : public UseCounts {
 public:
  SketchedUses(uint64_t max_rows, int range_bits)
      : range_bits_(range_bits),
        max_lines_(max_rows == 0 ? kMostLines : std::bit_ceil(8 * max_rows / kIdsPerLine + 1)),
        counters_(kLineBytes) {}

  uint32_t Count(uint64_t hash, uint32_t uses, const RowTime&) override {
    if (ids_ > kIdsPerLine * lines() && lines() < max_lines_) Double();
    const Counters counters = CountersOf(hash);
    const uint32_t before = Smallest(counters);
    const uint32_t now = std::min(before + uses, kMostUses);
    for (size_t counter : counters.at) {
      if (Get(counter) < now) Set(counter, now);
    }
    ids_ += before == 0;
    additions_ += now - before;
    if (additions_ >= kUsesPerLine * lines()) Halve();
    return now;
  }

  // Others may share its counters.
  void Forget(uint64_t) override {}

  uint64_t waiting() const override { return ids_; }
  void CountByUses(std::vector<uint64_t>&) const override {}
  uint64_t memory_bytes() const override { return counters_.capacity(); }

  std::string Save() const override {
    std::string bytes(2 * sizeof(uint64_t) + counters_.size(), '\0');
    std::memcpy(bytes.data(), &ids_, sizeof(ids_));
    std::memcpy(bytes.data() + sizeof(ids_), &additions_, sizeof(additions_));
    std::memcpy(bytes.data() + 2 * sizeof(uint64_t), counters_.data(), counters_.size());
    return bytes;
  }

  absl::Status Restore(absl::string_view bytes) override {
    const size_t counters = bytes.size() - std::min(bytes.size(), 2 * sizeof(uint64_t));
    if (counters < kLineBytes || !std::has_single_bit(counters) || counters > max_lines_ * kLineBytes) {
      return absl::DataLossError(absl::StrCat("sketch of uses: got ", counters, " bytes of counters, want ", kLineBytes,
                                              " times a power of two of at most ", max_lines_));
    }
    std::memcpy(&ids_, bytes.data(), sizeof(ids_));
    std::memcpy(&additions_, bytes.data() + sizeof(ids_), sizeof(additions_));
    counters_.assign(bytes.begin() + 2 * sizeof(uint64_t), bytes.end());
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kLineBytes = 64;
  static constexpr size_t kCountersPerLine = 2 * kLineBytes;
  static constexpr uint32_t kMostUses = 15;
  // At this load, the counters of two ids are rarely the same.
  static constexpr uint64_t kIdsPerLine = 16;
  static constexpr uint64_t kUsesPerLine = 10 * kIdsPerLine;
  static constexpr uint64_t kMostLines = uint64_t{1} << 24;

  struct Counters {
    size_t at[4];
  };

  uint64_t lines() const { return counters_.size() / kLineBytes; }

  // The line follows from the leading bits, so that its two halves follow from it when lines double.
  Counters CountersOf(uint64_t hash) const {
    const uint64_t line = ((hash << range_bits_) >> 32) * lines() >> 32;
    Counters counters;
    for (int i = 0; i < 4; ++i) {
      const size_t in_quarter = hash >> (5 * i) & 31;
      counters.at[i] = line * kCountersPerLine + i * (kCountersPerLine / 4) + in_quarter;
    }
    return counters;
  }

  uint32_t Get(size_t counter) const { return counters_[counter / 2] >> (counter % 2 * 4) & 15; }
  void Set(size_t counter, uint32_t value) {
    uint8_t& pair = counters_[counter / 2];
    const int shift = counter % 2 * 4;
    pair = static_cast<uint8_t>((pair & ~(15 << shift)) | value << shift);
  }
  uint32_t Smallest(const Counters& counters) const {
    uint32_t smallest = kMostUses;
    for (size_t counter : counters.at) smallest = std::min(smallest, Get(counter));
    return smallest;
  }

  void Double() {
    std::vector<uint8_t> doubled(2 * counters_.size());
    for (size_t line = 0; line < lines(); ++line) {
      const uint8_t* const from = counters_.data() + line * kLineBytes;
      std::copy_n(from, kLineBytes, doubled.data() + 2 * line * kLineBytes);
      std::copy_n(from, kLineBytes, doubled.data() + (2 * line + 1) * kLineBytes);
    }
    counters_ = std::move(doubled);
    // Each line now also has the counters of the other's ids, most of which were used once.
    Halve();
  }

  void Halve() {
    for (uint8_t& pair : counters_) pair = pair >> 1 & 0x77;
    additions_ /= 2;
    ids_ /= 2;
  }

  const int range_bits_;
  const uint64_t max_lines_;
  // Ids that were counted for the first time, and their uses, halved with the counters.
  uint64_t ids_ = 0;
  uint64_t additions_ = 0;
  std::vector<uint8_t> counters_;
};

}  // namespace

std::unique_ptr<UseCounts> UseCounts::Make(const RowRules& rules, int range_bits) {
  if (rules.min_uses <= 1) return nullptr;
  if (rules.sketch) return std::make_unique<SketchedUses>(rules.max_rows, range_bits);
  return std::make_unique<ExactUses>(rules.max_rows);
}

}  // namespace ballast
