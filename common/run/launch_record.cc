// SPDX-License-Identifier: Apache-2.0
#include "common/run/launch_record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/run/run_folder.h"
#include "common/storage/file.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kTimeFormat[] = "%Y-%m-%dT%H:%M:%E3SZ";

std::string PathIn(const std::string& run_dir) { return RunFolder(run_dir).launch(); }

// Returns whether a launch holds the lock.
bool IsLocked(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool locked = flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(file);
  return locked;
}

}  // namespace

absl::StatusOr<LaunchRecord> LaunchRecord::Create(const std::string& run_dir, absl::Time now) {
  const std::string path = PathIn(run_dir);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return absl::ErrnoToStatus(errno, path);
  LaunchRecord record(path, file, now);
  if (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot lock"));
    return absl::FailedPreconditionError(
        absl::StrCat("run directory ", run_dir, ": another launch is running in it; want another directory"));
  }
  if (absl::Status status = record.Write(std::nullopt, ""); !status.ok()) {
    unlink(path.c_str());
    return status;
  }
  return record;
}

absl::StatusOr<LaunchState> LaunchRecord::Read(const std::string& run_dir) {
  const std::string path = PathIn(run_dir);
  LaunchState state;
  // Ask first: a launch that ends between the two steps has already written how.
  state.running = IsLocked(path);
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  const absl::StatusOr<Json> object = ParseJsonObject(*text);
  absl::Status status = object.status();
  if (status.ok()) {
    const absl::StatusOr<std::string> started = StringField(*object, "started");
    std::string why;
    status.Update(started.status());
    if (started.ok() && !absl::ParseTime(kTimeFormat, *started, &state.started, &why)) {
      status.Update(absl::InvalidArgumentError(absl::StrCat("\"started\": ", why)));
    }
    if (const absl::StatusOr<int64_t> code = CountField(*object, "exit_status"); code.ok()) state.exit_status = *code;
    if (absl::StatusOr<std::string> error = StringField(*object, "error"); error.ok()) state.error = *std::move(error);
  }
  if (status.ok()) return state;
  if (!state.running) return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  // The launch is writing at this moment.
  state.started = absl::Now();
  return state;
}

LaunchRecord::LaunchRecord(LaunchRecord&& other) noexcept
    : path_(other.path_), file_(std::exchange(other.file_, -1)), started_(other.started_) {}

LaunchRecord::~LaunchRecord() {
  if (file_ >= 0) close(file_);
}

absl::Status LaunchRecord::End(int exit_status, absl::string_view error) { return Write(exit_status, error); }

absl::Status LaunchRecord::Write(std::optional<int> exit_status, absl::string_view error) {
  const Json code = exit_status.has_value() ? Json(static_cast<unsigned>(*exit_status)) : Json();
  const std::string text =
      absl::StrCat(JsonLine({{"started", absl::FormatTime(kTimeFormat, started_, absl::UTCTimeZone())},
                             {"process", getpid()},
                             {"exit_status", code},
                             {"error", std::string(error)}}),
                   "\n");
  // In place, because the lock belongs to this file.
  if (lseek(file_, 0, SEEK_SET) < 0) return absl::ErrnoToStatus(errno, path_);
  if (absl::Status status = WriteAll(file_, text, path_); !status.ok()) return status;
  if (ftruncate(file_, static_cast<off_t>(text.size())) != 0) return absl::ErrnoToStatus(errno, path_);
  return absl::OkStatus();
}

}  // namespace ballast
