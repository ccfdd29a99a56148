// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// A file that only grows. Errors name its path. Thread safety: none, but Sync may run concurrently with Append.
class AppendFile {
 public:
  virtual ~AppendFile() = default;

  // Appends all parts or nothing: RESOURCE_EXHAUSTED if the disk is full.
  virtual absl::Status Append(absl::Span<const absl::string_view> parts) = 0;

  // Makes everything appended before the call survive a crash of the machine. After an error it is unknown how much
  // survives, and every later Sync returns the same error.
  virtual absl::Status Sync() = 0;

  virtual uint64_t size() const = 0;
};

// Access to the files in which a server keeps its state; tests replace it to make disks fail. Errors name the path.
// Thread safety: all methods may be called from any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates a file; ALREADY_EXISTS if it exists. DATA_LOSS if the file may exist after a crash of the machine; after
  // any other error it does not. Both also hold for Reuse.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) = 0;

  // Turns an unneeded file into a new, empty one under another name; durable when it returns. The new file keeps its
  // space on disk and in the page cache, which makes appending cheap. After the appended bytes come at least 8 zeros
  // (fewer if the old file ends first), then the rest of the old content. NOT_FOUND if `from` does not exist,
  // ALREADY_EXISTS if `to` exists.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> Reuse(const std::string& from, const std::string& to) = 0;

  // Durable when it returns.
  virtual absl::Status Truncate(const std::string& path, uint64_t size) = 0;

  // Replaces `to`; durable when it returns. The file's content must already be synced.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;

  // OK if the file does not exist.
  virtual absl::Status Remove(const std::string& path) = 0;

  // Creates missing parent directories too; OK if it exists.
  virtual absl::Status MakeFolder(const std::string& path) = 0;

  // Returns names, sorted; empty if the directory does not exist.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
};

// Returns the file system of this machine.
FileSystem* PosixFileSystem();

}  // namespace ballast
