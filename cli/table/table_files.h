// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ballast/v1/table.pb.h"
#include "client/rows/row_delta_reader.h"
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

  // FAILED_PRECONDITION if the folder has files.
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

}  // namespace ballast
