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

// What the holder of a token may do; each may do what those before it may. A reader looks, a worker trains, an admin is
// a server of the job or directs it.
enum class AccessRole { kReader, kWorker, kAdmin };

// "reader", "worker", "admin".
absl::string_view AccessRoleName(AccessRole role);

// What a token stands for.
struct TokenGrant {
  AccessRole role = AccessRole::kReader;
  // A job's name, or "*" for every job.
  std::string job;
};

// The tokens that a server knows, from a text file with a line each: role, job or *, token, with blanks between them;
// '#' begins a comment. Keeps digests, and compares them all in constant time, so that an answer's time says nothing
// of a token. Thread safety: immutable.
class TokenTable {
 public:
  // As ReadPrivateFile, and INVALID_ARGUMENT naming the line, and never a token, for what does not fit the form.
  static absl::StatusOr<TokenTable> Load(const std::string& path);
  static absl::StatusOr<TokenTable> Parse(absl::string_view text, const std::string& name);

  // Null for a token that is not in the table.
  const TokenGrant* Find(absl::string_view token) const;

  // What a server shows to the others: the first admin token of every job, or else of one; empty where there is none.
  const std::string& admin_token() const { return admin_token_; }

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    TokenGrant grant;
  };
  // Nothing where OpenSSL has no memory.
  static std::optional<Digest> DigestOf(absl::string_view token);

  std::vector<Entry> entries_;
  std::string admin_token_;
};

// The token in a client's file, which has the same form with one line only: who only shows a token has no need of the
// others. Errors as TokenTable::Load.
absl::StatusOr<std::string> LoadClientToken(const std::string& path);

}  // namespace ballast
