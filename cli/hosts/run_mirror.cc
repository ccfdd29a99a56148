// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/run_mirror.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

constexpr size_t kPartBytes = 1 << 20;
// Unsent bytes from which no more is read.
constexpr size_t kFull = 4 << 20;

// Files under temporary names are renamed once they are complete.
bool IsTemporary(absl::string_view name) { return absl::EndsWith(name, ".tmp") || absl::EndsWith(name, ".partial"); }

// Lines, and events for TensorBoard.
bool Grows(absl::string_view name) {
  return absl::EndsWith(name, ".jsonl") || absl::StartsWith(name, "events.out.tfevents.");
}

absl::Status CheckPath(const std::string& path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  bool good = parts[0] != kKeyDirectory;
  for (absl::string_view part : parts) good = good && !part.empty() && part != "." && part != "..";
  if (good && !absl::StrContains(path, absl::string_view("\0", 1))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("got the file \"", path, "\", want one inside the run directory"));
}

// Owns a descriptor.
struct Handle {
  explicit Handle(int number) : number(number) {}
  Handle(const Handle&) = delete;
  ~Handle() {
    if (number >= 0) close(number);
  }
  const int number;
};

absl::Status WriteAt(const std::string& path, int flags, uint64_t offset, absl::string_view bytes) {
  const Handle file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0644));
  if (file.number < 0 || lseek(file.number, static_cast<off_t>(offset), SEEK_SET) < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return WriteAll(file.number, bytes, path);
}

absl::Status MakeParent(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  return error ? absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create the directory of ", path))
               : absl::OkStatus();
}

}  // namespace

RunMirror::File RunMirror::StateOf(const struct stat& info) {
  return {info.st_ino, info.st_ctim.tv_sec * 1'000'000'000 + info.st_ctim.tv_nsec, 0, false};
}

absl::Status RunMirror::Put(const internal::v1::AgentRequest::File& file) {
  const std::string path = absl::StrCat(path_, "/", file.path());
  if (absl::Status status = MakeParent(path); !status.ok()) return status;
  // Others may be reading the old one.
  const std::string target = file.append() ? path : absl::StrCat(path, ".tmp");
  {
    const Handle handle(
        open(target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (file.append() ? O_APPEND : O_TRUNC), 0600));
    if (handle.number < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", target));
    if (absl::Status status = WriteAll(handle.number, file.content(), target); !status.ok()) return status;
  }
  if (target != path && rename(target.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot replace ", path));
  }
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  File& state = files_[file.path()];
  state = StateOf(info);
  state.sent = static_cast<uint64_t>(info.st_size);
  state.whole = true;
  return absl::OkStatus();
}

bool RunMirror::SendChanges(FrameChannel& channel) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator at(path_, error), end;
  for (; !error && at != end; at.increment(error)) {
    const std::string name = at->path().lexically_relative(path_).string();
    if (name == kKeyDirectory) at.disable_recursion_pending();
    std::error_code ignored;
    if (!at->is_regular_file(ignored) || at->is_symlink(ignored) || IsTemporary(name)) continue;
    if (!SendFile(name, channel)) return false;
  }
  return true;
}

bool RunMirror::SendFile(const std::string& name, FrameChannel& channel) {
  const Handle handle(open(absl::StrCat(path_, "/", name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info;
  // It may be gone by now.
  if (handle.number < 0 || fstat(handle.number, &info) != 0) return true;
  File& state = files_[name];
  const File now = StateOf(info);
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  const bool same = state.inode == now.inode && state.changed_ns == now.changed_ns;
  // The clock of the file system is coarse: a file may grow without a later time.
  if (same && state.whole && state.sent == size) return true;
  const bool grew = Grows(name) && state.inode == now.inode && state.sent <= size;
  const uint64_t sent = grew || (same && !state.whole) ? state.sent : 0;
  state = now;
  state.sent = sent;
  internal::v1::AgentReply reply;
  internal::v1::AgentReply::FilePart& part = *reply.mutable_file();
  part.set_path(name);
  part.set_grows(Grows(name));
  do {
    if (channel.unsent() > kFull) return false;
    std::string& content = *part.mutable_content();
    content.resize(kPartBytes);
    const ssize_t got = pread(handle.number, content.data(), content.size(), static_cast<off_t>(state.sent));
    if (got < 0) return true;
    content.resize(got);
    part.set_offset(state.sent);
    state.sent += got;
    part.set_last(got < static_cast<ssize_t>(kPartBytes));
    channel.Send(reply);
  } while (!part.last());
  state.whole = true;
  return true;
}

absl::Status ReceivePart(const std::string& run_dir, const internal::v1::AgentReply::FilePart& part) {
  if (absl::Status status = CheckPath(part.path()); !status.ok()) return status;
  const std::string path = absl::StrCat(run_dir, "/", part.path());
  if (absl::Status status = MakeParent(path); !status.ok()) return status;
  const int flags = part.offset() == 0 ? O_TRUNC : 0;
  if (part.grows()) return WriteAt(path, flags, part.offset(), part.content());
  const std::string temporary = absl::StrCat(path, ".tmp");
  if (absl::Status status = WriteAt(temporary, flags, part.offset(), part.content()); !status.ok()) return status;
  if (!part.last() || rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot replace ", path));
}

}  // namespace ballast
