// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/disk_scenarios.h"

#include <functional>

#include "tests/fault/durability/checkpoint_death.h"
#include "tests/fault/durability/damage.h"
#include "tests/fault/durability/disk_full.h"
#include "tests/fault/durability/lost_disk.h"

namespace ballast {
namespace {

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

absl::StatusOr<Outcome> FullDisks(const SoakPlace& place, v1::Durability::Mode mode, absl::Duration time,
                                  uint64_t seed) {
  const StateFolder folder(place, "disk-full");
  const absl::StatusOr<DiskFullCounts> counts = InParts<DiskFullCounts>(time, seed, [&](uint64_t) {
    return FillDisks({.server = place.server, .folder = folder.path(), .mode = mode, .rounds = 10});
  });
  return absl::IsUnavailable(counts.status()) ? Skipped(counts.status()) : OutcomeOf(counts);
}

}  // namespace

std::vector<Scenario> DiskScenarios(const SoakPlace& place) {
  using namespace std::placeholders;
  return {
      {"lost_disk_wal", 0.03, std::bind(LostDisks, place, v1::Durability::WAL, _1, _2)},
      {"lost_disk_wal_sync", 0.03, std::bind(LostDisks, place, v1::Durability::WAL_SYNC, _1, _2)},
      {"damage", 0.04, std::bind(Damage, place, _1, _2)},
      {"checkpoints", 0.03, std::bind(Checkpoints, place, _1, _2)},
      {"disk_full_wal", 0.02, std::bind(FullDisks, place, v1::Durability::WAL, _1, _2)},
      {"disk_full_wal_sync", 0.02, std::bind(FullDisks, place, v1::Durability::WAL_SYNC, _1, _2)},
  };
}

}  // namespace ballast
