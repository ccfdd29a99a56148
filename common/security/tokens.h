// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Permissions of a token; each role includes those before it. A reader sees the state, a worker trains, an admin is a
// server of the job or controls it.
enum class AccessRole { kReader, kWorker, kAdmin };

// Returns "reader", "worker" or "admin".
absl::string_view AccessRoleName(AccessRole role);

struct TokenGrant {
  AccessRole role = AccessRole::kReader;
  // Job name, or "*" for all jobs.
  std::string job;
};

// Owns the tokens that a server accepts, read from a text file with one entry per line: role, job or *, token,
// separated by blanks; '#' begins a comment. Keeps digests only and compares all of them in constant time, so that
// response times reveal nothing about a token. Thread safety: immutable.
class TokenTable {
 public:
  // Returns the errors of ReadPrivateFile, and INVALID_ARGUMENT that names a malformed line, but never a token.
  static absl::StatusOr<TokenTable> Load(const std::string& path);
  static absl::StatusOr<TokenTable> Parse(absl::string_view text, const std::string& name);

  // Returns null for an unknown token.
  const TokenGrant* Find(absl::string_view token) const;

  // Token that this server presents to other servers: the first admin token for all jobs, otherwise the first admin
  // token of one job; empty if there is none.
  const std::string& admin_token() const { return admin_token_; }

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    TokenGrant grant;
  };
  // Returns nullopt if OpenSSL is out of memory.
  static std::optional<Digest> DigestOf(absl::string_view token);

  std::vector<Entry> entries_;
  std::string admin_token_;
};

// Loads the token in a client's file, which has the same format but must have exactly one line, because a client
// needs no other tokens. Returns the errors of TokenTable::Load.
absl::StatusOr<std::string> LoadClientToken(const std::string& path);

}  // namespace ballast
