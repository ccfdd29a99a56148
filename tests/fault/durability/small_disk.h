// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// Owns a memory file system of a given size, visible to this process and to those that it starts later: a disk that
// can be filled. Thread safety: confined to the thread that made it, the main one.
class SmallDisk {
 public:
  // To be called before there are other threads. `folder` exists and is empty. UNAVAILABLE, with the reason, if the
  // kernel does not let this process mount.
  static absl::StatusOr<std::unique_ptr<SmallDisk>> Create(const std::string& folder, uint64_t bytes);
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;

  // Takes all the space that is left.
  absl::Status FillUp();
  // Frees that space.
  void Free();

 private:
  explicit SmallDisk(std::string folder) : folder_(std::move(folder)) {}
  std::string filler() const { return folder_ + "/filler"; }

  const std::string folder_;
};

}  // namespace ballast
