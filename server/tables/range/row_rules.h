// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "server/tables/range/row_layout.h"

namespace ballast {

// The rules by which rows of a range begin and end; see ballast.v1.Admission and Eviction. Plain data.
struct RowRules {
  // Uses of an id before it gets a row; 1: the first.
  uint32_t min_uses = 1;
  // Counts uses in a sketch.
  bool sketch = false;
  // Probability with which a push of an id without a row creates it.
  double probability = 1;
  // Rows that a push may leave in the range; 0: any number.
  uint64_t max_rows = 0;
  // Steps after which a use counts half; 0: the score is the last step.
  float half_life = 0;
  // Rows with a smaller norm go first.
  float min_norm = 0;
};

// A moment by a table's clock, which decides which rows have expired. Plain data.
struct RowTime {
  static constexpr uint32_t kNever = std::numeric_limits<int32_t>::max();

  // The lowest 32 bits of the clock.
  uint32_t now = 0;
  // A row whose last update is more steps ago is missing.
  uint32_t max_age = kNever;

  // Steps since `step`, negative if another push was faster.
  int32_t Since(uint32_t step) const { return static_cast<int32_t>(now - step); }
  bool HasExpired(uint32_t last_step) const { return Since(last_step) > static_cast<int32_t>(max_age); }
};

// Returns the score of a row after `uses` more uses, `age` steps after its last update: the sum of its uses, each
// halved for every `half_life` steps since, as a bfloat16 of at most 256. The same bits on every machine.
uint16_t ScoreAfter(uint16_t score, int32_t age, float half_life, uint32_t uses);

// Returns the score `age` steps after the last update.
double ScoreAt(uint16_t score, int32_t age, float half_life);

}  // namespace ballast
