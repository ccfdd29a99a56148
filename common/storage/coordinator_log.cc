// SPDX-License-Identifier: Apache-2.0
#include "common/storage/coordinator_log.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/storage/record_log.h"

namespace ballast {
namespace {

constexpr absl::string_view kName = "states-";

}  // namespace

std::string CoordinatorLogPath(absl::string_view directory, uint64_t first) {
  return absl::StrCat(directory, "/", kName, first);
}

absl::StatusOr<std::vector<uint64_t>> ListCoordinatorLogs(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(directory);
  if (!names.ok()) return names.status();
  std::vector<uint64_t> firsts;
  for (const std::string& name : *names) {
    uint64_t first = 0;
    const absl::string_view text = name;
    if (absl::StartsWith(text, kName) && absl::SimpleAtoi(text.substr(kName.size()), &first)) firsts.push_back(first);
  }
  std::sort(firsts.begin(), firsts.end());
  return firsts;
}

// A newer log may be empty, because its process died before it wrote a state.
absl::StatusOr<CoordinatorStates> ReadCoordinatorLogs(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::vector<uint64_t>> logs = ListCoordinatorLogs(files, directory);
  if (!logs.ok()) return logs.status();
  CoordinatorStates states;
  for (uint64_t first : *logs) {
    absl::StatusOr<std::unique_ptr<RecordReader>> reader =
        RecordReader::Open(CoordinatorLogPath(directory, first), first);
    if (!reader.ok()) return reader.status();
    while (true) {
      absl::StatusOr<std::optional<RecordReader::Record>> record = (*reader)->Next();
      if (!record.ok()) return record.status();
      if (!record->has_value()) break;
      if ((*record)->body.empty()) continue;
      ++states.records;
      states.last_position = (*record)->position;
      states.last = std::move((*record)->body);
    }
    states.bytes += (*reader)->end();
    states.unfinished += (*reader)->unfinished();
    states.next = std::max({states.next, first + 1, (*reader)->next()});
  }
  if (states.records == 0 && !logs->empty() && logs->front() > 1) {
    return absl::DataLossError(absl::StrCat(CoordinatorLogPath(directory, logs->front()),
                                            ": at offset 0: has no complete state, but the log before it was removed"));
  }
  return states;
}

}  // namespace ballast
