// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// A file system in memory of so many bytes, seen by this process and those that it starts from then on: a disk that can
// be filled up. Thread safety: confined to the thread that made it, the main one.
class SmallDisk {
 public:
  // To be called before there are other threads. `folder` is there and empty. UNAVAILABLE, saying why, where the kernel
  // does not let this process.
  static absl::StatusOr<std::unique_ptr<SmallDisk>> Create(const std::string& folder, uint64_t bytes);
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;

  // Takes all the room that is left.
  absl::Status FillUp();
  // Gives it back.
  void Free();

 private:
  explicit SmallDisk(std::string folder) : folder_(std::move(folder)) {}
  std::string filler() const { return folder_ + "/filler"; }

  const std::string folder_;
};

}  // namespace ballast
