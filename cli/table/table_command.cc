// SPDX-License-Identifier: Apache-2.0
#include "cli/table/table_command.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command/server_connection.h"
#include "cli/target/run_target.h"
#include "client/coordinator_link.h"
#include "common/tensors/shard_map.h"

namespace ballast {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

constexpr TableSubcommand kSubcommands[] = {
    {"stats", "Print how often and how lately rows were updated.", StatsOfTable},
    {"top", "Print the rows with the most updates.", TopOfTable},
    {"dry-run", "Print what admission by use counts would leave of the rows.", DryRunOfTable},
    {"export", "Write all rows to a folder of safetensors files.", ExportTable},
};

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>([] {
    std::vector<FlagSpec> all = {
        {"out", "DIR", "export: the folder to write, new or empty."},
        {"encoding", "NAME", "export: fp32 (default) or bf16."},
        {"top", "N", "top: number of rows, 1 to 10000 (default: 20)."},
        {"min_uses", "N,...", "dry-run: numbers of uses before an id gets a row (default: 2,4,8,16)."},
        {"json", "", "Print one JSON object."},
        {"job", "NAME", "Fail if the servers hold a job with another name."},
        {"run", "DIR", "Run directory of the launch that the servers belong to, for its certificates and token."}};
    all.insert(all.end(), SecurityFlags().begin(), SecurityFlags().end());
    return all;
  }());
  return *flags;
}

std::string Usage() {
  std::string usage;
  for (const TableSubcommand& one : kSubcommands) {
    absl::StrAppend(&usage, usage.empty() ? "usage: " : "       ", "ballast table ", one.name,
                    " ADDRESS|RUN_DIR TABLE [flags]\n");
  }
  absl::StrAppend(&usage,
                  "\nReads a sparse table of a running job. ADDRESS (host:port) is that of its server 0, which "
                  "runs the\ncoordinator; RUN_DIR is the directory of a launch; TABLE is the table's name.\n");
  for (const TableSubcommand& one : kSubcommands) absl::StrAppendFormat(&usage, "  %-9s %s\n", one.name, one.summary);
  absl::StrAppend(&usage,
                  "\nexport writes the rows that exist, in any order, in files of ids (I64, the same 64 bits) and "
                  "values (F32 or\nBF16, [rows, dim]), and then manifest.json, which lists them. Training goes on: "
                  "each of the table's ranges is\nas it was at one moment, but not all at the same.\n\n");
  return usage;
}

const TableSubcommand* Find(const std::string& name) {
  for (const TableSubcommand& one : kSubcommands) {
    if (name == one.name) return &one;
  }
  return nullptr;
}

absl::Status WantedWords(const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const TableSubcommand& one : kSubcommands) names.emplace_back(one.name);
  return absl::InvalidArgumentError(
      absl::StrCat("table: got ", words.empty() ? "nothing" : absl::StrCat("\"", absl::StrJoin(words, " "), "\""),
                   ", want ", absl::StrJoin(names, "|"), " ADDRESS|RUN_DIR TABLE; see --help"));
}

// Asks the coordinator for the table's spec.
absl::StatusOr<v1::TableSpec> FindTable(const TableTarget& target, const std::string& name) {
  auto link = CoordinatorLink::Connect(target.address, kConnectTimeout, target.credentials, target.job);
  if (!link.ok()) return link.status();
  const absl::StatusOr<ShardMap> map = (*link)->GetShardMap();
  if (!map.ok()) return map.status();
  std::vector<std::string> names;
  for (const PlacedTable& table : map->tables()) {
    if (table.spec.name() == name) return table.spec;
    names.push_back(absl::StrCat("\"", table.spec.name(), "\""));
  }
  return absl::NotFoundError(absl::StrCat("table: got \"", name, "\", want one of the job's tables: ",
                                          names.empty() ? "it has none" : absl::StrJoin(names, ", ")));
}

// Asks the server for the name of its job.
absl::StatusOr<std::string> FindJob(const TableTarget& target) {
  const std::unique_ptr<ServerConnection> server =
      ServerConnection::Open(target.address, target.credentials, /*patient=*/false, target.job);
  const absl::StatusOr<v1::GetStatusResponse> status = server->GetStatus(kConnectTimeout);
  if (!status.ok()) return status.status();
  return status->job();
}

}  // namespace

const std::vector<FlagSpec>& TableFlags() { return Flags(); }

CommandResult TableCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << Usage() << DescribeFlags(Flags());
    return kExitSuccess;
  }
  const std::vector<std::string>& words = arguments->positional();
  const TableSubcommand* const subcommand = words.size() == 3 ? Find(words[0]) : nullptr;
  if (subcommand == nullptr) return Fail(err, WantedWords(words), kExitBadInput);
  const absl::StatusOr<RunTarget> servers = FindRunningTarget("table", words[1], *arguments);
  if (!servers.ok()) {
    return Fail(err, servers.status(), absl::IsUnavailable(servers.status()) ? kExitTemporary : kExitBadInput);
  }
  absl::StatusOr<Credentials> credentials = Credentials::Load(servers->security);
  if (!credentials.ok()) return Fail(err, credentials.status(), kExitBadInput);
  if (absl::Status status = credentials->CheckTarget(servers->address); !status.ok()) {
    return Fail(err, status, kExitBadInput);
  }
  TableTarget target{servers->address, *std::move(credentials), arguments->Get("job", ""), {}};
  absl::StatusOr<v1::TableSpec> spec = FindTable(target, words[2]);
  if (!spec.ok()) {
    const int exit_status = absl::IsInvalidArgument(spec.status()) ? kExitBadInput : kExitFailure;
    return Fail(err, WithTokenHint("table", spec.status(), *servers), exit_status);
  }
  target.spec = *std::move(spec);
  absl::StatusOr<std::string> job = FindJob(target);
  if (!job.ok()) return Fail(err, job.status(), kExitFailure);
  target.job = *std::move(job);
  return subcommand->run(target, *arguments, out, err);
}

}  // namespace ballast
