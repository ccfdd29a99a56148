// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/disk_scenarios.h"

#include <functional>

#include "absl/time/clock.h"
#include "tests/fault/durability/checkpoint_death.h"
#include "tests/fault/durability/damage.h"
#include "tests/fault/durability/lost_disk.h"

namespace ballast {
namespace {

// A few rounds at a time, each part with another seed, until the time is over. `run` answers StatusOr<Counts>.
template <typename Counts, typename Run>
absl::StatusOr<Counts> InParts(absl::Duration time, uint64_t seed, Run run) {
  const absl::Time end = absl::Now() + time;
  Counts all;
  for (uint64_t part = 0; part == 0 || absl::Now() < end; ++part) {
    const absl::StatusOr<Counts> counts = run(seed * 1000003 + part);
    if (!counts.ok()) return counts.status();
    all.Add(*counts);
  }
  return all;
}

absl::StatusOr<Outcome> LostDisks(const SoakPlace& place, v1::Durability::Mode mode, absl::Duration time,
                                  uint64_t seed) {
  const StateFolder folder(place, "lost-disk");
  LostDiskOptions options;
  options.folder = folder.path();
  options.mode = mode;
  options.rounds = 5;
  if (mode == v1::Durability::WAL) options.most_pushes = 60000;
  return OutcomeOf(InParts<LostDiskCounts>(time, seed, [&](uint64_t part) {
    options.seed = part;
    return LoseDisks(options);
  }));
}

absl::StatusOr<Outcome> Damage(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  const StateFolder folder(place, "damage");
  return OutcomeOf(InParts<DamageCounts>(
      time, seed, [&](uint64_t part) { return DamageFolders({.folder = folder.path(), .seed = part}); }));
}

absl::StatusOr<Outcome> Checkpoints(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  const StateFolder folder(place, "checkpoints");
  return OutcomeOf(InParts<CheckpointDeathCounts>(
      time, seed, [&](uint64_t part) { return DieInCheckpoints({.folder = folder.path(), .seed = part}); }));
}

}  // namespace

std::vector<Scenario> DiskScenarios(const SoakPlace& place) {
  using namespace std::placeholders;
  return {
      {"lost_disk_wal", 0.03, std::bind(LostDisks, place, v1::Durability::WAL, _1, _2)},
      {"lost_disk_wal_sync", 0.03, std::bind(LostDisks, place, v1::Durability::WAL_SYNC, _1, _2)},
      {"damage", 0.04, std::bind(Damage, place, _1, _2)},
      {"checkpoints", 0.03, std::bind(Checkpoints, place, _1, _2)},
  };
}

}  // namespace ballast
