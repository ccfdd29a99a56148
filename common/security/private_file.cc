// SPDX-License-Identifier: Apache-2.0
#include "common/security/private_file.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

bool IsOwnGroup(gid_t group) {
  if (group == getegid()) return true;
  const int count = getgroups(0, nullptr);
  std::vector<gid_t> groups(std::max(count, 0));
  if (count > 0 && getgroups(count, groups.data()) != count) return false;
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

absl::Status CheckMode(const struct stat& file, const std::string& name) {
  if (file.st_uid != geteuid() && file.st_uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(name, ": belongs to user ", file.st_uid, ", want user ", geteuid(), " (this process) or root"));
  }
  const bool for_own_group = file.st_uid == 0 && geteuid() != 0 && IsOwnGroup(file.st_gid);
  const mode_t forbidden = for_own_group ? 0037 : 0077;
  if ((file.st_mode & forbidden) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrFormat(
      "%s: got mode %04o, which lets other users read or change the file, want 0600: run chmod 600, and replace the "
      "secret if others may have read it",
      name, file.st_mode & 07777));
}

absl::Status Errno(const std::string& name, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, const std::string& what) {
  const std::string name = absl::StrCat(what, " ", path);
  // O_NONBLOCK, so that opening a pipe does not block the process.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Errno(name, "cannot open");
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat file = {};
  if (fstat(fd, &file) != 0) return Errno(name, "cannot stat");
  if (!S_ISREG(file.st_mode)) return absl::InvalidArgumentError(absl::StrCat(name, ": is not a regular file"));
  if (absl::Status status = CheckMode(file, name); !status.ok()) return status;
  std::string content(std::min<size_t>(file.st_size, kMaxBytes) + 1, '\0');
  size_t got = 0;
  while (got < content.size()) {
    const ssize_t more = read(fd, content.data() + got, content.size() - got);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return Errno(name, "cannot read");
    if (more == 0) break;
    got += more;
  }
  if (got > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": has more than ", kMaxBytes, " bytes"));
  }
  content.resize(got);
  return content;
}

absl::Status WritePrivateFile(const std::string& path, const std::string& content) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
  absl::Status status = WriteAll(fd, content, path);
  if (close(fd) != 0) status.Update(absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path)));
  if (!status.ok()) unlink(path.c_str());
  return status;
}

}  // namespace ballast
