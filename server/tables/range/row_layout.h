// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// A row's history, which follows its numbers.
struct RowState {
  // Step of the last update.
  uint32_t last_step = 0;
  // Number of updates.
  uint32_t version = 0;
  // Recent uses, a bfloat16; rows with low scores are evicted first.
  uint16_t score = 0;
  // Always 0, so that equal rows have equal images.
  uint16_t unused = 0;
};
static_assert(sizeof(RowState) == 12);

// Layout of a table's rows: `dim` weights, then the optimizer's slots, then the state. Thread safety:
// immutable.
class RowLayout {
 public:
  // `dim`: 1 to 4096. `slot_floats`: at most 2 * dim + 1.
  constexpr RowLayout(int dim, int slot_floats) : dim_(dim), slot_floats_(slot_floats) {}

  constexpr int dim() const { return dim_; }
  constexpr int slot_floats() const { return slot_floats_; }
  // Number of floats of a row's weights and slots.
  constexpr int floats() const { return dim_ + slot_floats_; }

  // Number of 32-bit words of a row's image: its floats and its state, one after the other.
  constexpr size_t image_words() const { return floats() + sizeof(RowState) / sizeof(uint32_t); }

  // Distance between rows. A row larger than a cache line starts at a multiple of 16 bytes, so that it touches no more
  // lines than its size requires, or one more.
  constexpr size_t bytes() const {
    const size_t bytes = floats() * sizeof(float) + sizeof(RowState);
    return bytes <= 64 ? bytes : (bytes + 15) / 16 * 16;
  }

  RowState& State(float* row) const { return *reinterpret_cast<RowState*>(row + floats()); }
  const RowState& State(const float* row) const { return *reinterpret_cast<const RowState*>(row + floats()); }

 private:
  int dim_;
  int slot_floats_;
};

}  // namespace ballast
