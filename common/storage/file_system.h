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

// A file that grows at its end. Errors name its path. Thread safety: none, but Sync may run beside Append.
class AppendFile {
 public:
  virtual ~AppendFile() = default;

  // Appends all parts, or nothing: RESOURCE_EXHAUSTED where the disk is full.
  virtual absl::Status Append(absl::Span<const absl::string_view> parts) = 0;

  // What was appended before the call survives the machine's death. After an error nobody knows how much of it does,
  // and every later call answers that error.
  virtual absl::Status Sync() = 0;

  virtual uint64_t size() const = 0;
};

// What a server keeps its state with: the seam at which tests let disks fail. Errors name the path.
// Thread safety: all methods may be called from any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Created where there is none; ALREADY_EXISTS where there is one. DATA_LOSS where the file may be there once the
  // machine has died; after any other error it is not. The same is true of Reuse.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) = 0;

  // Takes a file that nobody needs any more, under another name, to be written anew from its beginning; lasts when it
  // returns. The new file is empty, but its place on the disk and in memory is there, which makes appending cheap. At
  // least 8 zeros follow what is appended (fewer where the old file ends), and then, to its end, what the old file had.
  // NOT_FOUND where there is none, ALREADY_EXISTS where there is a file of the new name.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> Reuse(const std::string& from, const std::string& to) = 0;

  // Cuts the file and makes that last.
  virtual absl::Status Truncate(const std::string& path, uint64_t size) = 0;

  // Replaces `to`; lasts when it returns. What is in the file must have been synced.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;

  // OK where there is none.
  virtual absl::Status Remove(const std::string& path) = 0;

  // With those above it; OK where there is one.
  virtual absl::Status MakeFolder(const std::string& path) = 0;

  // Names, sorted; none where there is no such folder.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
};

// This machine's files.
FileSystem* PosixFileSystem();

}  // namespace ballast
