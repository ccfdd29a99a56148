// SPDX-License-Identifier: Apache-2.0
#include "common/job/durability_config.h"

namespace ballast {

absl::Duration ReturnTime(const v1::Durability& durability) {
  return absl::Seconds(durability.return_seconds() == 0 ? 60 : durability.return_seconds());
}

bool OutlivesAServer(const v1::Durability& durability) {
  switch (durability.mode()) {
    case v1::Durability::WAL:
    case v1::Durability::WAL_SYNC:
    case v1::Durability::STANDBY:
      return true;
    default:
      return false;
  }
}

bool TakesCheckpoints(const v1::Durability& durability) { return durability.mode() != v1::Durability::NONE; }

absl::Duration CheckpointInterval(const v1::Durability& durability) {
  return absl::Seconds(durability.checkpoint_seconds() > 0 ? durability.checkpoint_seconds() : 60);
}

uint32_t CheckpointsKept(const v1::Durability& durability) {
  return durability.keep_checkpoints() > 0 ? durability.keep_checkpoints() : 2;
}

}  // namespace ballast
