// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/security/tokens.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/server_context.h"

namespace ballast {

// The least role that may make a call, named as "ParameterService/Push"; nothing for a name that no service of ours
// has.
std::optional<AccessRole> LeastRole(absl::string_view method);

// Who may make which call of one service, by the token that the call shows. Asked before a call does anything; a method
// that LeastRole does not know is refused to everyone. Deliberately knows no message: callers say what job a request
// names. Thread safety: all methods may be called from any thread.
class AccessGuard {
 public:
  // Null: no tokens are wanted and everyone is let in. `job` answers the job that the service holds, empty: none yet.
  // Both outlive the guard.
  AccessGuard(const TokenTable* tokens, std::function<std::string()> job) : tokens_(tokens), job_(std::move(job)) {}

  // UNAUTHENTICATED without one token that is known, PERMISSION_DENIED for one of another job than the request's or the
  // service's, or of too small a role: smaller than the method's, or than `least`. An empty `job` is in no request.
  absl::Status Check(const grpc::CallbackServerContext& context, absl::string_view method, absl::string_view job = "",
                     AccessRole least = AccessRole::kReader) const;

 private:
  const TokenTable* const tokens_;
  const std::function<std::string()> job_;
};

// Refuses calls of every service, health checks and unknown ones among them, as AccessGuard does without a known token,
// but before their messages are read. For servers with TLS, the only ones that gRPC asks such things. Shared as gRPC
// wants it.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeTokenGate(std::shared_ptr<const TokenTable> tokens);

}  // namespace ballast
