// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/port/access_guard.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_status.h"
#include "common/status/job_failure.h"

namespace ballast {
namespace {

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

struct MethodRole {
  absl::string_view method;
  AccessRole least;
};

// Each new call needs a line here.
constexpr MethodRole kMethods[] = {
    {"ParameterService/Push", AccessRole::kWorker},
    {"ParameterService/Pull", AccessRole::kReader},
    {"ParameterService/PushPull", AccessRole::kWorker},
    {"ParameterService/DeclareTensors", AccessRole::kWorker},
    {"ParameterService/SetValues", AccessRole::kWorker},
    {"ParameterService/PullRows", AccessRole::kReader},
    {"ParameterService/PushRows", AccessRole::kWorker},
    {"ParameterService/WatchRows", AccessRole::kReader},
    {"ParameterService/InspectRows", AccessRole::kReader},
    {"ParameterService/Pause", AccessRole::kWorker},
    {"ParameterService/ReportVersions", AccessRole::kWorker},
    // Uses part of the bytes in flight for as long as the call lasts.
    {"ParameterService/OpenDataStream", AccessRole::kReader},
    {"ParameterService/ShareMemory", AccessRole::kWorker},
    {"ParameterService/GetStatus", AccessRole::kReader},
    // A caller that acts as a server needs the admin role for these three.
    {"CoordinatorService/Join", AccessRole::kWorker},
    {"CoordinatorService/Heartbeat", AccessRole::kWorker},
    {"CoordinatorService/Leave", AccessRole::kWorker},
    {"CoordinatorService/PlaceTensors", AccessRole::kWorker},
    {"CoordinatorService/GetShardMap", AccessRole::kReader},
    {"CoordinatorService/AcquireLease", AccessRole::kWorker},
    {"CoordinatorService/CompleteLease", AccessRole::kWorker},
    {"CoordinatorService/ReportProgress", AccessRole::kWorker},
    {"CoordinatorService/GetProgress", AccessRole::kReader},
    // Holds the job's data back.
    {"CoordinatorService/SaveCheckpoint", AccessRole::kAdmin},
    // The stream replaces the shard's contents.
    {"StandbyService/Replicate", AccessRole::kAdmin},
};

// Returns the token after "Bearer " in the authorization header; empty unless there is exactly one such header.
absl::string_view FindToken(const Metadata& metadata) {
  const auto [begin, end] = metadata.equal_range("authorization");
  if (begin == end || std::next(begin) != end) return "";
  const absl::string_view value(begin->second.data(), begin->second.size());
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(value, kScheme)) return "";
  return value.substr(kScheme.size());
}

// UNAUTHENTICATED unless the call presents one known token. Never null.
absl::StatusOr<const TokenGrant*> FindGrant(const TokenTable& tokens, absl::string_view token) {
  if (token.empty()) {
    return absl::UnauthenticatedError(
        "got no token, want one that this server knows: pass --token_file, or send the header authorization: Bearer "
        "TOKEN");
  }
  const TokenGrant* const grant = tokens.Find(token);
  if (grant == nullptr) return absl::UnauthenticatedError("got a token that this server does not know");
  return grant;
}

absl::Status Denied(absl::string_view method, absl::string_view why) {
  return absl::PermissionDeniedError(absl::StrCat(method, ": ", why));
}

class TokenGate : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenGate(std::shared_ptr<const TokenTable> tokens) : tokens_(std::move(tokens)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*, OutputMetadata*) override {
    return ToGrpcStatus(FindGrant(*tokens_, FindToken(metadata)).status());
  }

 private:
  const std::shared_ptr<const TokenTable> tokens_;
};

}  // namespace

absl::string_view TokenOf(const grpc::CallbackServerContext& context) { return FindToken(context.client_metadata()); }

std::optional<AccessRole> LeastRole(absl::string_view method) {
  const auto* const found =
      std::find_if(std::begin(kMethods), std::end(kMethods), [&](const MethodRole& m) { return m.method == method; });
  if (found == std::end(kMethods)) return std::nullopt;
  return found->least;
}

absl::Status AccessGuard::CheckJobOf(const TokenGrant& grant, absl::string_view method, absl::string_view job) const {
  const std::string held = job_();
  for (absl::string_view wants : {job, absl::string_view(held)}) {
    if (grant.job != "*" && !wants.empty() && wants != grant.job) {
      return Denied(method, absl::StrCat("got a token of job \"", grant.job, "\", want one of job \"", wants, "\""));
    }
  }
  return CheckHeldJob(held, job);
}

absl::Status AccessGuard::Check(absl::string_view token, absl::string_view method, absl::string_view job,
                                AccessRole least) const {
  if (tokens_ == nullptr) return CheckHeldJob(job_(), job);
  const absl::StatusOr<const TokenGrant*> grant = FindGrant(*tokens_, token);
  if (!grant.ok()) return grant.status();
  const std::optional<AccessRole> wanted = LeastRole(method);
  if (!wanted.has_value()) return Denied(method, "no role may call it");
  if (const AccessRole want = std::max(*wanted, least); (*grant)->role < want) {
    return Denied(
        method, absl::StrCat("got a token of role ", AccessRoleName((*grant)->role), ", want ", AccessRoleName(want)));
  }
  return CheckJobOf(**grant, method, job);
}

absl::Status AccessGuard::CheckJob(absl::string_view token, absl::string_view method, absl::string_view job) const {
  if (tokens_ == nullptr) return CheckHeldJob(job_(), job);
  const absl::StatusOr<const TokenGrant*> grant = FindGrant(*tokens_, token);
  if (!grant.ok()) return grant.status();
  return CheckJobOf(**grant, method, job);
}

std::shared_ptr<grpc::AuthMetadataProcessor> MakeTokenGate(std::shared_ptr<const TokenTable> tokens) {
  return std::make_shared<TokenGate>(std::move(tokens));
}

}  // namespace ballast
