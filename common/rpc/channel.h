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

// Opens a separate connection to one server. Every channel of every process is opened here, so that all behave alike:
// each call carries the credentials' token; gRPC retries nothing, because callers do; a lost connection is reopened
// at least every second, and the server's name is resolved as often, because a restarted process keeps its name but
// may have a new address; a peer that acknowledges no data for `silence` is considered lost; the receive limit fits
// the largest message.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const Credentials& credentials,
                                           absl::Duration silence = kPeerSilence);

// Opens a channel to a server in this process, without the network.
std::shared_ptr<grpc::Channel> OpenInProcessChannel(grpc::Server& server, const Credentials& credentials);

}  // namespace ballast
