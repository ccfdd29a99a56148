// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/display/progress_display.h"
#include "cli/table/table_command.h"
#include "client/watch/row_watcher.h"
#include "client/watch/table_files.h"
#include "common/text/number_text.h"

// `ballast table export`.
namespace ballast {
namespace {

// An export fails if no range has come for this long. Shorter losses of a server are waited for.
constexpr absl::Duration kStallTimeout = absl::Minutes(2);

absl::StatusOr<v1::Encoding> EncodingOf(const Arguments& arguments) {
  const std::string name = arguments.Get("encoding", "fp32");
  if (name == "fp32") return v1::ENCODING_FP32;
  if (name == "bf16") return v1::ENCODING_BF16;
  return absl::InvalidArgumentError(absl::StrCat("table export: --encoding: got ", name, ", want fp32 or bf16"));
}

}  // namespace

CommandResult ExportTable(const TableTarget& target, const Arguments& arguments, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<v1::Encoding> encoding = EncodingOf(arguments);
  if (!encoding.ok()) return Fail(err, encoding.status(), kExitBadInput);
  TableFiles::Options options;
  options.folder = arguments.Get("out", "");
  options.encoding = *encoding;
  if (options.folder.empty()) {
    return Fail(err, absl::InvalidArgumentError("table export: want --out DIR, the folder to write"), kExitBadInput);
  }
  RowWatcherOptions servers;
  servers.coordinator = target.address;
  servers.credentials = target.credentials;
  servers.job = target.job;
  const absl::StatusOr<TableFiles::Written> written =
      WriteTableFiles(std::move(servers), target.spec, std::move(options), kStallTimeout);
  if (!written.ok()) {
    return Fail(err, written.status(), absl::IsAlreadyExists(written.status()) ? kExitBadInput : kExitFailure);
  }
  if (arguments.Has("json")) {
    const nlohmann::ordered_json json = {{"table", target.spec.name()},
                                         {"rows", written->rows},
                                         {"files", written->files},
                                         {"bytes", written->bytes},
                                         {"manifest", written->manifest}};
    out << json.dump() << std::endl;
  } else {
    out << "table " << target.spec.name() << ": " << FormatCount(written->rows) << " rows in " << written->files
        << (written->files == 1 ? " file, " : " files, ") << BytesText(written->bytes) << "; " << written->manifest
        << "\n";
  }
  return kExitSuccess;
}

}  // namespace ballast
