// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/tensor.pb.h"
#include "tests/fault/programs/count_fields.h"

namespace ballast {

// Faults of disks, one per source file.

struct LostDiskOptions {
  // Directory of the test's own; emptied.
  std::string folder;
  v1::Durability::Mode mode = v1::Durability::WAL_SYNC;
  uint32_t rounds = 10;
  uint32_t workers = 4;
  // Each machine dies after a random number of acknowledgements, up to this one.
  uint64_t most_pushes = 600;
  uint64_t seed = 1;
};

struct LostDiskCounts {
  v1::Durability::Mode mode = v1::Durability::WAL_SYNC;
  uint64_t rounds = 0;
  uint64_t acknowledged = 0;
  // Acknowledged before the machine died, and missing after it.
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  // Time from the acknowledgement of the oldest lost push to the machine's death.
  double oldest_lost_seconds = 0;

  static std::vector<NamedCount<LostDiskCounts>> Fields() {
    using C = LostDiskCounts;
    return {
        {"rounds", &C::rounds}, {"acknowledged", &C::acknowledged}, {"lost", &C::lost}, {"duplicated", &C::duplicated}};
  }
  void Add(const LostDiskCounts& other);
  // True if the mode's guarantee holds: with WAL nothing older than a second is lost, otherwise nothing is.
  bool good() const { return duplicated == 0 && (mode == v1::Durability::WAL ? oldest_lost_seconds <= 1 : lost == 0); }
  nlohmann::ordered_json ToJson() const;
};

// A machine dies repeatedly while pushes are acknowledged: of the unsynced data, a part is lost, a part was never
// written, a part is present. Then the shard recovers and the workers resend what has no response.
absl::StatusOr<LostDiskCounts> LoseDisks(const LostDiskOptions& options);

struct DamageOptions {
  // Directory of the test's own; emptied.
  std::string folder;
  uint32_t bit_flips = 50;
  uint32_t truncations = 50;
  uint64_t seed = 1;
};

struct DamageCounts {
  uint64_t bit_flips = 0;
  uint64_t truncations = 0;
  // Refused with an error that names the file; cut at the damage, with everything before it present; complete,
  // because the damaged bytes have no meaning (the zeros between records).
  uint64_t refused = 0;
  uint64_t cut = 0;
  uint64_t unharmed = 0;
  // Loaded with other content than was written, or cut though no file was cut.
  uint64_t silent = 0;
  // Description of the first of these.
  std::string first_silent;

  static std::vector<NamedCount<DamageCounts>> Fields() {
    using C = DamageCounts;
    return {{"bit_flips", &C::bit_flips}, {"truncations", &C::truncations},
            {"refused", &C::refused},     {"cut", &C::cut},
            {"unharmed", &C::unharmed},   {"silent", &C::silent}};
  }
  void Add(const DamageCounts& other);
  // True if nothing was silent.
  bool good() const { return silent == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Damages a directory of snapshot and log, one change at a time, and has a shard recover from it.
absl::StatusOr<DamageCounts> DamageFolders(const DamageOptions& options);

struct CheckpointDeathOptions {
  // Directory of the test's own; emptied.
  std::string folder;
  // Deaths in the middle of a checkpoint, and each kind of damage to complete ones.
  uint32_t deaths = 50;
  uint32_t bit_flips = 50;
  uint32_t truncations = 50;
  uint64_t seed = 1;
};

struct CheckpointDeathCounts {
  uint64_t deaths = 0;
  // Complete checkpoints that loaded after a death: the old or the new one.
  uint64_t old_loaded = 0;
  uint64_t new_loaded = 0;
  uint64_t bit_flips = 0;
  uint64_t truncations = 0;
  // Damage that was refused with an error that names the damaged file.
  uint64_t refused = 0;
  // All other outcomes: after a death nothing loaded, a mixture loaded, one older than the committed one loaded, or
  // the next checkpoint failed; or damage loaded. Description of the first.
  uint64_t wrong = 0;
  std::string first_wrong;

  static std::vector<NamedCount<CheckpointDeathCounts>> Fields() {
    using C = CheckpointDeathCounts;
    return {{"deaths", &C::deaths},       {"old_loaded", &C::old_loaded},   {"new_loaded", &C::new_loaded},
            {"bit_flips", &C::bit_flips}, {"truncations", &C::truncations}, {"refused", &C::refused},
            {"wrong", &C::wrong}};
  }
  void Add(const CheckpointDeathCounts& other);
  // True if nothing was wrong.
  bool good() const { return wrong == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Takes checkpoints of two shards and dies at one of their disk accesses, half of the times with the loss of
// unsynced data; then damages complete checkpoints.
absl::StatusOr<CheckpointDeathCounts> DieInCheckpoints(const CheckpointDeathOptions& options);

struct DiskFullOptions {
  // Path of ballast_server.
  std::string server;
  // Empty directory of the test's own. A small disk is mounted there.
  std::string folder;
  v1::Durability::Mode mode = v1::Durability::WAL;
  uint32_t rounds = 5;
};

struct DiskFullCounts {
  uint64_t rounds = 0;
  // Refused because the disk was full.
  uint64_t pushes_refused = 0;
  // Rounds in which the full disk had other effects: the server ended, pushes kept being accepted or were refused for
  // another reason, values differed from the acknowledged ones before or after a restart, or no push was accepted
  // within 5 s of space being freed. Description of the first.
  uint64_t wrong = 0;
  std::string first_wrong;
  // Time from freeing the space to the first accepted push.
  std::vector<double> recovery_seconds;

  static std::vector<NamedCount<DiskFullCounts>> Fields() {
    using C = DiskFullCounts;
    return {{"rounds", &C::rounds}, {"pushes_refused", &C::pushes_refused}, {"wrong", &C::wrong}};
  }
  void Add(const DiskFullCounts& other);
  bool good() const { return rounds > 0 && wrong == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Fills a real server's disk to the last byte and frees it again; pushes and pulls before, during and after. Each
// round ends with killing the server and comparing what its successor has. UNAVAILABLE if this process may not mount
// a disk. To be called by the main thread.
absl::StatusOr<DiskFullCounts> FillDisks(const DiskFullOptions& options);

}  // namespace ballast
