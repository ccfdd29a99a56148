// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/host_list.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ballast {
namespace {

constexpr int kMaxWorkers = 64;

absl::Status Refuse(absl::string_view entry, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("got \"", entry, "\", want ", want));
}

// A user's name must not look like a flag or a word of the shell.
bool IsUser(absl::string_view user) {
  return !user.empty() && user[0] != '-' && std::all_of(user.begin(), user.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("._-+", absl::string_view(&c, 1));
  });
}

absl::StatusOr<JobHost> ParseHost(absl::string_view entry) {
  JobHost host;
  absl::string_view rest = entry;
  std::string user;
  if (const size_t at = rest.find('@'); at != absl::string_view::npos) {
    user = std::string(rest.substr(0, at));
    rest.remove_prefix(at + 1);
    if (!IsUser(user)) return Refuse(entry, "a user's name of letters, digits, \".\", \"_\", \"-\" and \"+\" before @");
  }
  absl::string_view workers;
  bool counted = false;
  if (absl::StartsWith(rest, "[")) {
    const size_t end = rest.find(']');
    if (end == absl::string_view::npos) return Refuse(entry, "\"]\" after the address");
    host.address = std::string(rest.substr(1, end - 1));
    rest.remove_prefix(end + 1);
    counted = absl::ConsumePrefix(&rest, ":");
    if (!counted && !rest.empty()) return Refuse(entry, "a host, or host:N with its number of workers");
    workers = rest;
  } else if (const size_t colon = rest.find(':'); colon != absl::string_view::npos && colon == rest.rfind(':')) {
    host.address = std::string(rest.substr(0, colon));
    workers = rest.substr(colon + 1);
    counted = true;
  } else {
    host.address = std::string(rest);
  }
  if (counted && (!absl::SimpleAtoi(workers, &host.workers) || host.workers < 0 || host.workers > kMaxWorkers)) {
    return Refuse(entry, absl::StrCat("a number of workers from 0 to ", kMaxWorkers, " after the colon"));
  }
  if (!IsHost(host.address) || host.address[0] == '-' || absl::StrContains(host.address, "*")) {
    return Refuse(entry, "a host's name or address");
  }
  host.local =
      user.empty() && (host.address == "localhost" || host.address == "::1" || absl::StartsWith(host.address, "127."));
  host.login = user.empty() ? host.address : absl::StrCat(user, "@", host.address);
  return host;
}

}  // namespace

absl::StatusOr<std::vector<JobHost>> ParseHosts(absl::string_view text) {
  std::vector<JobHost> hosts;
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    absl::StatusOr<JobHost> host = ParseHost(entry);
    if (!host.ok()) return host.status();
    for (const JobHost& other : hosts) {
      if (other.address == host->address || (other.local && host->local)) {
        return Refuse(text, absl::StrCat("each host once; ", host->address, ":2 has two workers"));
      }
    }
    hosts.push_back(*std::move(host));
  }
  return hosts;
}

bool IsHost(absl::string_view host) {
  in6_addr six = {};
  if (inet_pton(AF_INET6, std::string(host).c_str(), &six) == 1) return true;
  return !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '*';
  });
}

std::string WithPort(const std::string& host, absl::string_view port) {
  return absl::StrContains(host, ":") ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

}  // namespace ballast
