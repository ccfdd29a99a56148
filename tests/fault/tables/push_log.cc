// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/push_log.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// A record is twice the push's number, plus this if it was acknowledged.
constexpr uint64_t kAcknowledged = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<PushLog>> PushLog::Create(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("create ", path));
  return std::unique_ptr<PushLog>(new PushLog(path, file));
}

PushLog::~PushLog() { close(file_); }

absl::Status PushLog::Append(uint64_t record) {
  const ssize_t written = write(file_, &record, sizeof(record));
  if (written == sizeof(record)) return absl::OkStatus();
  return absl::ErrnoToStatus(written < 0 ? errno : ENOSPC, absl::StrCat("write ", path_));
}

absl::StatusOr<bool> PushLog::Begin(uint64_t number) {
  const absl::Status status = Append(2 * number);
  if (!status.ok()) return status;
  return true;
}

absl::Status PushLog::Acknowledge(uint64_t number, const RowUses&, const RowsResult&) {
  return Append(2 * number + kAcknowledged);
}

absl::StatusOr<LoggedPushes> PushLog::Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  LoggedPushes pushes;
  std::set<uint64_t> open;
  uint64_t record = 0;
  while (file.read(reinterpret_cast<char*>(&record), sizeof(record))) {
    const uint64_t number = record / 2;
    if (record % 2 != kAcknowledged) {
      if (!open.insert(number).second)
        return absl::DataLossError(absl::StrCat(path, ": push ", number, " began twice"));
    } else if (open.erase(number) == 1) {
      pushes.acknowledged.push_back(number);
    } else {
      return absl::DataLossError(absl::StrCat(path, ": push ", number, " was acknowledged, but had not begun"));
    }
  }
  if (file.gcount() != 0) return absl::DataLossError(absl::StrCat(path, ": the last record is incomplete"));
  pushes.unknown.assign(open.begin(), open.end());
  return pushes;
}

}  // namespace ballast
