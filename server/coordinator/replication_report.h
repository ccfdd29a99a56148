// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// The report of a server or a standby on its peer.
struct ReplicationReport {
  // From a server: the state of its standby.
  v1::StandbyReport standby;
  // From a standby: the stream from its server has ended or timed out.
  bool server_lost = false;
};

}  // namespace ballast
