// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/run_end.h"

#include <filesystem>
#include <limits>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command/checkpoint_request.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file_system.h"

namespace ballast {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(90);

}  // namespace

std::string SaveCheckpoint(ProgressSource& source, absl::FunctionRef<bool(absl::Duration)> wait) {
  const absl::StatusOr<v1::SaveCheckpointResponse> saved = RequestCheckpoint(source, /*stop=*/true, kTimeout, wait);
  if (saved.ok()) {
    return absl::StrCat("checkpoint ", saved->id(), " saved at step ", saved->step(), ", epoch ", saved->epoch());
  }
  if (absl::IsCancelled(saved.status())) return "";
  return absl::StrCat("no checkpoint was saved: ", saved.status().message());
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
