// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/credentials.h"
#include "grpcpp/channel.h"
#include "grpcpp/server.h"

namespace ballast {

inline constexpr absl::Duration kPeerSilence = absl::Seconds(20);

// A connection of its own to one server. Every channel of every process is opened here, so that all behave alike: each
// call shows the credentials' token; gRPC retries nothing, since callers do; a lost connection is made again at least
// every second, and the server's name is looked up again as often, because a process that is started elsewhere keeps
// its name and not its address; a peer that takes nothing in for `silence` is taken for gone; the largest message has
// room.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const Credentials& credentials,
                                           absl::Duration silence = kPeerSilence);

// The same to a server of this process, which no network is needed for.
std::shared_ptr<grpc::Channel> OpenInProcessChannel(grpc::Server& server, const Credentials& credentials);

}  // namespace ballast
