// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/command/command.h"
#include "cli/hosts/host_list.h"
#include "common/program/arguments.h"
#include "common/security/key_folder.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast keys DIR --hosts LIST [flags]\n\n"
    "Creates the credentials of a job's servers and workers in the new directory DIR, which only this user can\n"
    "read: a CA certificate, a certificate and key for servers and one for clients, and a token for each role. The\n"
    "CA's key is not stored, so no certificate can be added later; create a new set before these expire.\n\n";

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"hosts", "LIST",
       "Comma-separated hosts of the servers: names, *.example.com or IP addresses; localhost is always added."},
      {"job", "NAME", "Make the tokens valid for this job only (default: any job)."},
      {"days", "N", "Validity of the certificates in days, 1 to 3650 (default: 365)."},
  };
  return *flags;
}

absl::StatusOr<std::vector<std::string>> ReadHosts(const Arguments& arguments) {
  std::vector<std::string> hosts = {"localhost", "127.0.0.1"};
  if (!arguments.Has("hosts")) return absl::InvalidArgumentError("keys: flag --hosts is missing; see --help");
  for (absl::string_view host : absl::StrSplit(arguments.Get("hosts", ""), ',')) {
    if (!IsHost(host)) {
      return absl::InvalidArgumentError(absl::StrCat("flag --hosts: got \"", host, "\", want a host without a port"));
    }
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.emplace_back(host);
  }
  return hosts;
}

}  // namespace

const std::vector<FlagSpec>& KeysFlags() { return Flags(); }

// `ballast keys`: creates the certificates and tokens for a job on several machines.
CommandResult KeysCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  if (arguments->positional().size() != 1) {
    return Fail(err, absl::InvalidArgumentError("keys: want exactly one new directory; see --help"), kExitBadInput);
  }
  const absl::StatusOr<std::vector<std::string>> hosts = ReadHosts(*arguments);
  if (!hosts.ok()) return Fail(err, hosts.status(), kExitBadInput);
  const absl::StatusOr<int> days = arguments->GetInt("days", 365, 1, 3650);
  if (!days.ok()) return Fail(err, days.status(), kExitBadInput);
  const std::string job = arguments->Get("job", "*");
  if (absl::Status status = ValidateJobName(job); job != "*" && !status.ok()) return Fail(err, status, kExitBadInput);
  const absl::Time now = absl::Now();
  const CertificateAuthority::Validity validity = {now - absl::Minutes(5), now + absl::Hours(24) * *days};
  const std::string& folder = arguments->positional()[0];
  const absl::StatusOr<KeyFolder> keys = KeyFolder::Make(folder, {job, *hosts, validity, validity});
  if (!keys.ok()) return Fail(err, keys.status(), kExitBadInput);
  out << "created " << folder << ", valid for " << *days << " days, for servers at " << absl::StrJoin(*hosts, ", ")
      << "\n\nservers: ballast_server " << absl::StrJoin(keys->ServerFlags(), " ") << "\nworkers: ballast_worker "
      << absl::StrJoin(keys->WorkerFlags(), " ") << "\nstatus: ballast status "
      << absl::StrJoin(keys->ReaderFlags(), " ") << std::endl;
  return kExitSuccess;
}

}  // namespace ballast
