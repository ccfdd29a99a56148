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

// Returns the least role that may make a call, named like "ParameterService/Push"; nothing for an unknown name.
std::optional<AccessRole> LeastRole(absl::string_view method);

// Returns the token that a call presents, which is part of its metadata; empty unless it presents exactly one.
absl::string_view TokenOf(const grpc::CallbackServerContext& context);

// Decides who may make which call of one service, from the call's token and the job that it names. Check it before a
// call does anything; a method that LeastRole does not know is refused for everyone. Deliberately knows no message:
// callers pass the job that a request names. Thread safety: all methods may be called from any thread.
class AccessGuard {
 public:
  // Null `tokens`: calls need no token. `job` returns the job that the service holds; empty: none yet. Both outlive
  // the guard.
  AccessGuard(const TokenTable* tokens, std::function<std::string()> job) : tokens_(tokens), job_(std::move(job)) {}

  // Returns the call's token for the checks below; empty if calls need none. gRPC makes a map of a call's metadata when
  // they are first read, which a flood of calls should not cost.
  absl::string_view TokenFor(const grpc::CallbackServerContext& context) const {
    return tokens_ == nullptr ? absl::string_view() : TokenOf(context);
  }

  // UNAUTHENTICATED without a known token. PERMISSION_DENIED if the token is for a job other than the request's or
  // the service's, or if its role is below the method's or below `least`. FAILED_PRECONDITION (WRONG_JOB) if the
  // request names a job other than the service's. An empty `job` means the token's job, or the only one.
  absl::Status Check(absl::string_view token, absl::string_view method, absl::string_view job,
                     AccessRole least = AccessRole::kReader) const;
  absl::Status Check(const grpc::CallbackServerContext& context, absl::string_view method, absl::string_view job,
                     AccessRole least = AccessRole::kReader) const {
    return Check(TokenFor(context), method, job, least);
  }

  // Makes the part of Check that needs the request's job, for a call that passed Check before its request was read.
  // The service may have taken on a job since.
  absl::Status CheckJob(absl::string_view token, absl::string_view method, absl::string_view job) const;

 private:
  absl::Status CheckJobOf(const TokenGrant& grant, absl::string_view method, absl::string_view job) const;

  const TokenTable* const tokens_;
  const std::function<std::string()> job_;
};

// Refuses calls without a known token with the errors of AccessGuard, but for every service, including health checks
// and unknown methods, and before messages are read. For servers with TLS, because gRPC supports this only with TLS.
// Shared because gRPC requires it.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeTokenGate(std::shared_ptr<const TokenTable> tokens);

}  // namespace ballast
