// SPDX-License-Identifier: Apache-2.0
#include "worker/rows/table_saver.h"

#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "client/watch/row_watcher.h"
#include "client/watch/table_files.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

constexpr absl::Duration kStallTimeout = absl::Seconds(30);

absl::Status Failed(const char* what, const std::string& path, const std::error_code& error) {
  return absl::UnknownError(absl::StrCat("cannot ", what, " ", path, ": ", error.message()));
}

absl::Status SaveTable(const TableSaverOptions& options, const v1::TableSpec& spec) {
  const std::string folder = FolderOfTable(options.folder, spec.name());
  const std::string unfinished = folder + ".tmp";
  std::error_code error;
  std::filesystem::remove_all(unfinished, error);
  if (!error) std::filesystem::create_directories(options.folder, error);
  if (error) return Failed("write", unfinished, error);
  RowWatcherOptions servers;
  servers.coordinator = options.coordinator;
  servers.credentials = options.credentials;
  servers.job = options.job;
  const absl::StatusOr<TableFiles::Written> written =
      WriteTableFiles(std::move(servers), spec, {.folder = unfinished}, kStallTimeout);
  if (!written.ok()) return written.status();
  std::filesystem::remove_all(folder, error);
  if (!error) std::filesystem::rename(unfinished, folder, error);
  if (error) return Failed("replace", folder, error);
  std::cerr << "table " << spec.name() << ": " << CountText(written->rows) << " rows saved in " << folder << " ("
            << BytesText(written->bytes) << ")" << std::endl;
  return absl::OkStatus();
}

}  // namespace

std::string FolderOfTable(const std::string& folder, const std::string& table) {
  // The only byte of a table's name that a file's name may not have; a name with "%2F" stays another one.
  return absl::StrCat(folder, "/", absl::StrReplaceAll(table, {{"%", "%25"}, {"/", "%2F"}}));
}

absl::Status SaveTables(const TableSaverOptions& options, absl::Span<const v1::TableSpec> tables) {
  for (const v1::TableSpec& spec : tables) {
    if (absl::Status status = SaveTable(options, spec); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("table ", spec.name(), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace ballast
