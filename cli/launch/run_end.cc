// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/run_end.h"

#include <filesystem>
#include <limits>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/member_loop.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file_system.h"

namespace ballast {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(90);
constexpr absl::Duration kCallTimeout = absl::Milliseconds(300);
// Pause between two calls.
constexpr absl::Duration kPause = absl::Milliseconds(50);

}  // namespace

std::string SaveCheckpoint(ProgressSource& source, absl::FunctionRef<bool(absl::Duration)> wait) {
  const absl::Time deadline = absl::Now() + kTimeout;
  v1::SaveCheckpointResponse checkpoint;
  while (true) {
    absl::StatusOr<v1::SaveCheckpointResponse> response = source.SaveCheckpoint(checkpoint.id(), kCallTimeout);
    std::string failure;
    bool final = false;
    if (response.ok()) {
      checkpoint = *std::move(response);
      final = !checkpoint.pending();
      failure = final ? checkpoint.failure()
                      : absl::StrCat("timed out after ", absl::FormatDuration(kTimeout), " waiting for ",
                                     checkpoint.waiting_for());
    } else {
      final = !IsUnresponsive(response.status());
      failure = std::string(response.status().message());
    }
    if (final && failure.empty()) {
      return absl::StrCat("checkpoint ", checkpoint.id(), " saved at step ", checkpoint.step(), ", epoch ",
                          checkpoint.epoch());
    }
    if (final || absl::Now() >= deadline) return absl::StrCat("no checkpoint was saved: ", failure);
    if (!wait(kPause)) return "";
  }
}

void RemovePartialFiles(const std::string& run_dir, absl::Span<const uint64_t> processes, uint32_t keep_checkpoints) {
  // The names that WriteFileAtomically uses. The directory may also hold files of others.
  std::set<std::string> endings;
  for (uint64_t process : processes) endings.insert(absl::StrCat(".", process, ".tmp"));
  std::error_code error;
  std::vector<std::filesystem::path> partial;
  for (std::filesystem::recursive_directory_iterator entry(run_dir, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const size_t dot = name.rfind('.', name.size() < 5 ? 0 : name.size() - 5);
    if (dot != std::string::npos && endings.contains(name.substr(dot))) partial.push_back(entry->path());
  }
  for (const std::filesystem::path& path : partial) std::filesystem::remove(path, error);
  CheckpointFolder(PosixFileSystem(), absl::StrCat(run_dir, "/checkpoints"))
      .Prune(keep_checkpoints, std::numeric_limits<uint64_t>::max())
      .IgnoreError();
}

}  // namespace ballast
