// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// What servers that come in pairs say of each other.
struct ReplicationReport {
  // Of a server: how its standby follows.
  v1::StandbyReport standby;
  // Of a standby: the stream from its server has ended, or is silent.
  bool server_lost = false;
};

}  // namespace ballast
