// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ballast/v1/table.pb.h"
#include "common/rpc/credentials.h"

namespace ballast {

// The job whose tables are saved.
struct TableSaverOptions {
  std::string coordinator;
  Credentials credentials;
  std::string job;
  // One folder for each table appears here.
  std::string folder;
};

// Returns the folder of a table's files.
std::string FolderOfTable(const std::string& folder, const std::string& table);

// Writes all rows of the tables, and one line about each to standard error. A table's folder appears complete, in place
// of an older one. Blocks; fails if no rows arrive for 30 s.
absl::Status SaveTables(const TableSaverOptions& options, absl::Span<const v1::TableSpec> tables);

}  // namespace ballast
