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

// Who may make which call of one service, by the token that the call shows and the job that it names. Asked before a
// call does anything; a method that LeastRole does not know is refused to everyone. Deliberately knows no message:
// callers say what job a request names. Thread safety: all methods may be called from any thread.
class AccessGuard {
 public:
  // Null: no tokens are wanted and everyone is let in. `job` answers the job that the service holds, empty: none yet.
  // Both outlive the guard.
  AccessGuard(const TokenTable* tokens, std::function<std::string()> job) : tokens_(tokens), job_(std::move(job)) {}

  // UNAUTHENTICATED without one token that is known, PERMISSION_DENIED for one of another job than the request's or the
  // service's, or of too small a role: smaller than the method's, or than `least`; FAILED_PRECONDITION (WRONG_JOB) if
  // the request names another job than the service's. With an empty `job` the request means the token's job, or the
  // only one.
  absl::Status Check(const grpc::CallbackServerContext& context, absl::string_view method, absl::string_view job,
                     AccessRole least = AccessRole::kReader) const;

  // The part of Check that needs the request's job, for a call that Check let in before its request was read. The job
  // that the service holds may have come meanwhile.
  absl::Status CheckJob(const grpc::CallbackServerContext& context, absl::string_view method,
                        absl::string_view job) const;

 private:
  absl::Status CheckJobOf(const TokenGrant& grant, absl::string_view method, absl::string_view job) const;

  const TokenTable* const tokens_;
  const std::function<std::string()> job_;
};

// Refuses calls of every service, health checks and unknown ones among them, as AccessGuard does without a known token,
// but before their messages are read. For servers with TLS, the only ones that gRPC asks such things. Shared as gRPC
// wants it.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeTokenGate(std::shared_ptr<const TokenTable> tokens);

}  // namespace ballast
