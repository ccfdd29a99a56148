// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/table.pb.h"
#include "client/rows/row_delta_reader.h"
#include "client/watch/row_copy.h"
#include "client/watch/row_watcher.h"
#include "common/codecs/codec.h"

namespace ballast {

// Owns the files of one export of a table: rows-00000.safetensors and so on, then manifest.json. Invariant: a file with
// its final name is complete, and a folder with a manifest has all rows. Keeps the rows of one file in memory. Thread
// safety: all methods may be called from any thread.
class TableFiles {
 public:
  struct Options {
    // Makes the folder if there is none.
    std::string folder;
    // FP32 or BF16.
    v1::Encoding encoding = v1::ENCODING_FP32;
    // Ends a file at about that size.
    uint64_t file_bytes = uint64_t{256} << 20;
  };

  // ALREADY_EXISTS if the folder has files.
  static absl::StatusOr<std::unique_ptr<TableFiles>> Make(const v1::TableSpec& spec, Options options);

  // Adds a range's rows. The first error ends the writing: Finish returns it.
  void Add(const RangeUpdate& update);

  struct Written {
    uint64_t rows = 0;
    uint64_t bytes = 0;
    size_t files = 0;
    // Path of the manifest.
    std::string manifest;
  };
  // Writes the last file and the manifest.
  absl::StatusOr<Written> Finish();

 private:
  struct File {
    std::string name;
    uint64_t rows = 0;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
  };

  TableFiles(const v1::TableSpec& spec, Options options, const Codec* codec)
      : spec_(spec), options_(std::move(options)), codec_(codec) {}
  absl::Status WriteFileLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteManifestLocked(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const v1::TableSpec spec_;
  const Options options_;
  const Codec* const codec_;
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<File> files_ ABSL_GUARDED_BY(mutex_);
  // Rows that no file has yet.
  std::vector<uint64_t> ids_ ABSL_GUARDED_BY(mutex_);
  std::string values_ ABSL_GUARDED_BY(mutex_);
};

// Writes all rows that the servers have of a table; `servers` names them. Training goes on meanwhile. Blocks; fails if
// no rows arrive for as long as `stall`. A shorter loss of a server is waited for.
absl::StatusOr<TableFiles::Written> WriteTableFiles(RowWatcherOptions servers, const v1::TableSpec& spec,
                                                    TableFiles::Options options, absl::Duration stall);

// A table read from files. The value of a row that `rows` lacks follows from the spec.
struct LoadedTable {
  v1::TableSpec spec;
  std::shared_ptr<RowCopy> rows;
};

// Reads the files of an export. Trusts nothing in them: NOT_FOUND without a manifest; INVALID_ARGUMENT or DATA_LOSS
// names the file and what is wrong with it, such as its checksum.
absl::StatusOr<LoadedTable> ReadTableFiles(const std::string& folder);

}  // namespace ballast
