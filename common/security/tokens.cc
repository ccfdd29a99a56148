// SPDX-License-Identifier: Apache-2.0
#include "common/security/tokens.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/security/private_file.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {
namespace {

constexpr char kFlag[] = "--token_file";
// Shorter tokens can be guessed; longer ones do not fit well in a header.
constexpr size_t kMinLength = 32;
constexpr size_t kMaxLength = 512;

struct Line {
  TokenGrant grant;
  std::string token;
};

std::optional<AccessRole> FindRole(absl::string_view name) {
  for (AccessRole role : {AccessRole::kReader, AccessRole::kWorker, AccessRole::kAdmin}) {
    if (name == AccessRoleName(role)) return role;
  }
  return std::nullopt;
}

// RFC 6750 allows these characters in a header.
bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_' || c == '~' || c == '+' || c == '/' || c == '=';
}

absl::StatusOr<Line> ParseLine(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", words.size(), " words, want three: a role, a job or *, and a token"));
  }
  const std::optional<AccessRole> role = FindRole(words[0]);
  if (!role.has_value()) {
    return absl::InvalidArgumentError("the first word is not a role, want reader, worker or admin");
  }
  if (words[1] != "*" && !ValidateJobName(words[1]).ok()) {
    return absl::InvalidArgumentError("the second word is not a job name, want one (a-z, 0-9, '_', '-') or *");
  }
  const std::string& token = words[2];
  if (token.size() < kMinLength || token.size() > kMaxLength) {
    return absl::InvalidArgumentError(absl::StrCat("got a token of ", token.size(), " characters, want ", kMinLength,
                                                   " to ", kMaxLength, ": openssl rand -hex 32 makes one"));
  }
  if (!std::all_of(token.begin(), token.end(), IsTokenCharacter)) {
    return absl::InvalidArgumentError("the token has characters other than A-Z, a-z, 0-9 and -._~+/=");
  }
  return Line{{*role, words[1]}, token};
}

absl::StatusOr<std::vector<Line>> ParseLines(absl::string_view text, const std::string& name) {
  std::vector<Line> lines;
  int number = 0;
  for (absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw.substr(0, raw.find('#')));
    if (line.empty()) continue;
    absl::StatusOr<Line> parsed = ParseLine(line);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": line ", number, ": ", parsed.status().message()));
    }
    const bool again = std::any_of(lines.begin(), lines.end(), [&](const Line& l) { return l.token == parsed->token; });
    if (again) return absl::InvalidArgumentError(absl::StrCat(name, ": line ", number, ": repeats an earlier token"));
    lines.push_back(*std::move(parsed));
  }
  return lines;
}

}  // namespace

absl::string_view AccessRoleName(AccessRole role) {
  switch (role) {
    case AccessRole::kReader:
      return "reader";
    case AccessRole::kWorker:
      return "worker";
    case AccessRole::kAdmin:
      return "admin";
  }
  return "";
}

std::optional<TokenTable::Digest> TokenTable::DigestOf(absl::string_view token) {
  // Fetched once, because fetching takes a lock in OpenSSL.
  static const EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Digest digest = {};
  if (EVP_Digest(token.data(), token.size(), digest.data(), nullptr, sha256, nullptr) != 1) return std::nullopt;
  return digest;
}

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text, const std::string& name) {
  absl::StatusOr<std::vector<Line>> lines = ParseLines(text, name);
  if (!lines.ok()) return lines.status();
  if (lines->empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": contains no token"));
  TokenTable table;
  bool for_every_job = false;
  for (Line& line : *lines) {
    const bool every = line.grant.job == "*";
    if (line.grant.role == AccessRole::kAdmin && (table.admin_token_.empty() || (every && !for_every_job))) {
      table.admin_token_ = line.token;
      for_every_job = every;
    }
    const std::optional<Digest> digest = DigestOf(line.token);
    if (!digest.has_value()) return absl::InternalError(absl::StrCat(name, ": cannot compute the digest of a token"));
    table.entries_.push_back({*digest, std::move(line.grant)});
  }
  return table;
}

absl::StatusOr<TokenTable> TokenTable::Load(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadPrivateFile(path, kFlag);
  if (!text.ok()) return text.status();
  return Parse(*text, absl::StrCat(kFlag, " ", path));
}

const TokenGrant* TokenTable::Find(absl::string_view token) const {
  const std::optional<Digest> digest = DigestOf(token);
  if (!digest.has_value()) return nullptr;
  const TokenGrant* found = nullptr;
  // Compares every entry even after a match, so that the time is constant.
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest->data(), digest->size()) == 0) found = &entry.grant;
  }
  return found;
}

absl::StatusOr<std::string> LoadClientToken(const std::string& path) {
  const std::string name = absl::StrCat(kFlag, " ", path);
  const absl::StatusOr<std::string> text = ReadPrivateFile(path, kFlag);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<Line>> lines = ParseLines(*text, name);
  if (!lines.ok()) return lines.status();
  if (lines->size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": got ", lines->size(), " tokens, want one: a client's file holds only the client's own token"));
  }
  return std::move((*lines)[0].token);
}

}  // namespace ballast
