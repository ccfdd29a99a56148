// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// A network of two hosts on this machine: namespaces of the kernel's, joined by a cable that can be pulled. The calling
// thread, and each that it starts from then on, is on the near host; what is run by OnFar is on the far one.
// A pulled cable swallows what is sent and tells nobody, as a switch that lost its power does.
// Thread safety: confined to the thread that made it, the main one.
class TwoHosts {
 public:
  // To be called before there are other threads. UNAVAILABLE, saying why, where the kernel does not let this process.
  static absl::StatusOr<std::unique_ptr<TwoHosts>> Create();
  // The thread goes back to where it came from, where it may.
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;

  // The far host's address, without a port.
  static std::string far_address() { return "10.77.0.1"; }

  absl::Status OnFar(const std::function<absl::Status()>& run) const;

  absl::Status Pull() const;
  absl::Status Plug() const;

 private:
  TwoHosts() = default;
  absl::Status Connect();

  int home_ = -1, near_ = -1, far_ = -1;
};

}  // namespace ballast
