// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// Owns a network of two hosts on this machine: kernel namespaces joined by a cable that can be pulled. The calling
// thread, and each that it starts later, is on the near host; OnFar runs code on the far one. A pulled cable drops
// packets without an error, like a switch that lost power. Thread safety: confined to the thread that made it, the
// main one.
class TwoHosts {
 public:
  // To be called before there are other threads. UNAVAILABLE, with the reason, if namespaces are not permitted.
  static absl::StatusOr<std::unique_ptr<TwoHosts>> Create();
  // Returns the thread to its original namespace, if permitted.
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;

  // Address of the far host, without a port.
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
