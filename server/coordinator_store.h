// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/storage/record_log.h"
#include "server/coordinator_journal.h"

namespace ballast {

// A coordinator's state in a folder: logs of records, each a whole state, of which the last one counts. Behind a state
// that is on the disk an empty record says so: without it, damage to that state would look like a crash's work. A new
// log begins with each process and when the one before is long; those before it go once it holds a state. Invariant:
// there is always a log with the newest state that Save answered OK to. Does not know what is in a state. Thread
// safety: none; one thread saves at a time.
class CoordinatorStore : public CoordinatorJournal {
 public:
  // A log is not much longer.
  static constexpr uint64_t kLogBytes = uint64_t{16} << 20;
  // What a machine's death may take of states that need not be synced.
  static constexpr absl::Duration kSyncInterval = absl::Seconds(1);

  // Makes the folder where there is none. DATA_LOSS where a log in it is damaged. Both must outlive it.
  static absl::StatusOr<std::unique_ptr<CoordinatorStore>> Open(FileSystem* files, std::string folder,
                                                                const Clock* clock);

  // That the folder held when it was opened; empty where it held none.
  const std::string& recovered() const { return recovered_; }

  absl::Status Save(absl::string_view state, bool sync) override;
  void Settle() override;

 private:
  CoordinatorStore(FileSystem* files, std::string folder, const Clock* clock)
      : files_(files), folder_(std::move(folder)), clock_(clock) {}
  absl::Status Recover();
  // After an error the log is abandoned.
  absl::Status Sync();
  void Mark();
  // After it nobody knows what the file holds.
  void AbandonLog();
  // Begins the next log and takes the others away once the state is in it.
  absl::Status SaveInNewLog(absl::string_view state);

  FileSystem* const files_;
  const std::string folder_;
  const Clock* const clock_;
  std::string recovered_;
  // Null until something is saved, and after a write that failed so that nobody knows what is in the file.
  std::unique_ptr<RecordWriter> log_;
  // Positions of the next record, of the last state, and of the last record that is on the disk.
  uint64_t next_ = 1;
  uint64_t last_ = 0;
  uint64_t synced_ = 0;
  absl::Time synced_at_;
};

}  // namespace ballast
