// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/table.pb.h"
#include "cli/command/command.h"
#include "common/program/arguments.h"
#include "common/rpc/credentials.h"

namespace ballast {

// `ballast table SUBCOMMAND ADDRESS|RUN_DIR TABLE`, and its flags.
RunCommand TableCommand;
FlagTable TableFlags;

// The servers and the table that a command line names.
struct TableTarget {
  // Address of the job's coordinator.
  std::string address;
  Credentials credentials;
  std::string job;
  v1::TableSpec spec;
};

// A subcommand of `ballast table`. A new one needs a function below, its flags in the table of flags, and a row in the
// table of subcommands, both in table_command.cc.
struct TableSubcommand {
  const char* name;
  const char* summary;
  // Called with the table's spec.
  CommandResult (*run)(const TableTarget& target, const Arguments& arguments, std::ostream& out, std::ostream& err);
};

// Print numbers of the table's rows, those with the most updates, and the rows that admission would leave.
CommandResult StatsOfTable(const TableTarget& target, const Arguments& arguments, std::ostream& out, std::ostream& err);
CommandResult TopOfTable(const TableTarget& target, const Arguments& arguments, std::ostream& out, std::ostream& err);
CommandResult DryRunOfTable(const TableTarget& target, const Arguments& arguments, std::ostream& out,
                            std::ostream& err);

// Writes all rows of the table to a folder of files.
CommandResult ExportTable(const TableTarget& target, const Arguments& arguments, std::ostream& out, std::ostream& err);

}  // namespace ballast
