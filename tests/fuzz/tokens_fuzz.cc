// SPDX-License-Identifier: Apache-2.0
// A server's token file is refused without revealing a token, or gives a table that knows each line's token.
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/security/tokens.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {
namespace {

constexpr char kReaderToken[] = "0123456789abcdef0123456789abcdef";
constexpr char kAdminToken[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ-._~+/=abcdefghijk";

// The words of a line before its comment.
std::vector<std::string> Words(absl::string_view line) {
  return absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r\v\f"), absl::SkipEmpty());
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string reader = std::string("reader mnist ") + kReaderToken;
  const std::string admin = std::string("admin * ") + kAdminToken;
  return {reader, "# tokens\n" + reader + " # mine\n\n\t" + admin + "\r\n",
          reader + "\n" + admin + "\nworker mnist x" + kReaderToken};
}

void FuzzOne(FuzzInput input) {
  const absl::string_view text = input.Rest();
  const auto table = TokenTable::Parse(text, "tokens");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words = Words(line);
    if (words.empty()) continue;
    const std::string& token = words.back();
    if (!table.ok()) {
      Require(token.size() < 32 || !absl::StrContains(table.status().message(), token), "an error reveals no token");
      continue;
    }
    const TokenGrant* const grant = table->Find(token);
    Require(grant != nullptr, "a token of the file is known");
    Require(words.size() == 3 && words[0] == AccessRoleName(grant->role) && words[1] == grant->job,
            "a token has its line's role and job");
    Require(table->Find(token + "x") == nullptr || absl::StrContains(text, token + "x"),
            "a token that is not in the file is unknown");
  }
  if (!table.ok()) return;
  Require(table->Find("") == nullptr, "the empty token is unknown");
  Require(table->admin_token().empty() || table->Find(table->admin_token())->role == AccessRole::kAdmin,
          "the token that a server sends is an admin's");
}

}  // namespace ballast
