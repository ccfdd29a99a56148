// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/durability/small_disk.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

absl::Status Refused(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("cannot mount a small disk: ", what, ": ", std::strerror(errno)));
}

// Moves the process to its own mount namespace; without privileges, as superuser of a new user namespace.
absl::Status LeaveMounts() {
  if (unshare(CLONE_NEWNS) == 0) return absl::OkStatus();
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return Refused("unshare");
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SmallDisk>> SmallDisk::Create(const std::string& folder, uint64_t bytes) {
  if (absl::Status status = LeaveMounts(); !status.ok()) return status;
  // Mounts made here must not be visible elsewhere.
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return Refused("mount");
  if (mount("none", folder.c_str(), "tmpfs", 0, absl::StrCat("size=", bytes).c_str()) != 0) return Refused("mount");
  return std::unique_ptr<SmallDisk>(new SmallDisk(folder));
}

SmallDisk::~SmallDisk() { umount2(folder_.c_str(), MNT_DETACH); }

absl::Status SmallDisk::FillUp() {
  const int file = open(filler().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return absl::ErrnoToStatus(errno, filler());
  // Fills it to the last byte.
  for (size_t bytes = 1 << 20; bytes > 0;) {
    const std::string zeros(bytes, '\0');
    if (write(file, zeros.data(), bytes) < 0) bytes /= 2;
  }
  const bool full = errno == ENOSPC;
  close(file);
  return full ? absl::OkStatus() : absl::ErrnoToStatus(errno, filler());
}

void SmallDisk::Free() { unlink(filler().c_str()); }

}  // namespace ballast
