// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

namespace ballast {

// Lets one GPU reach the memory pools of others, so that copies from them do not pass through the host. CUDA's pools
// are closed to other GPUs until each pair is opened. Thread safety: one thread.
class PeerAccess {
 public:
  explicit PeerAccess(int gpu) : gpu_(gpu) {}

  // Tries to open the pool of `other` to this GPU, which must be the thread's current one. Tries each GPU once; if it
  // fails, warns that the driver copies through the host. Returns whether the pool is open.
  bool Open(int other);

 private:
  const int gpu_;
  // Keyed by GPU: whether its pool is open.
  std::map<int, bool> tried_;
};

}  // namespace ballast
