// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/tensor.pb.h"
#include "google/protobuf/repeated_field.h"

namespace ballast {

// Owns what each worker of a job cost the others: the waits that it caused at each shard. A server reports the totals
// of its process; those of a process that was lost stay. Thread safety: none; the coordinator guards it.
class CausedWaitTable {
 public:
  explicit CausedWaitTable(uint32_t workers) : workers_(workers) {}

  // A report of the server of `shard`, of that incarnation. INVALID_ARGUMENT for a worker that the job does not have,
  // or a time that is not a number or negative.
  absl::Status Report(uint32_t shard, uint64_t incarnation,
                      const google::protobuf::RepeatedPtrField<v1::CausedWait>& waits);

  // Fills in caused_waits: for each worker the time at the shard where it is longest, because shards wait side by side.
  void Fill(v1::JobProgress& progress) const;

 private:
  using Seconds = std::map<uint32_t, double>;
  struct Shard {
    // The newest process, what it reported, and what all earlier ones reported last.
    uint64_t incarnation = 0;
    Seconds newest, earlier;
  };

  const uint32_t workers_;
  std::map<uint32_t, Shard> shards_;
};

}  // namespace ballast
