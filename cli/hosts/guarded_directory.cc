// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/guarded_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

void RemoveAll(const std::string& path) {
  std::error_code ignored;
  // A process that is just being killed may still write.
  for (int attempt = 0; attempt < 3; ++attempt) std::filesystem::remove_all(path, ignored);
}

// Runs in the guard of a directory: removes it once `life` has no writer.
[[noreturn]] void Guard(const std::string& path, int life) {
  setsid();
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
  // The remote shell must not wait for this process.
  dup2(life, STDIN_FILENO);
  close_range(STDIN_FILENO + 1, UINT_MAX, 0);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
  }
  RemoveAll(path);
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GuardedDirectory>> GuardedDirectory::Create() {
  int life[2];
  if (pipe2(life, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot open a pipe");
  std::unique_ptr<GuardedDirectory> directory(new GuardedDirectory(life[1]));
  const char* parent = std::getenv("TMPDIR");
  directory->path_ = absl::StrCat(parent == nullptr || *parent != '/' ? "/tmp" : parent, "/ballast-XXXXXX");
  const bool made = mkdtemp(directory->path_.data()) != nullptr;
  const int error = errno;
  if (made) directory->guard_ = fork();
  if (made && directory->guard_ == 0) Guard(directory->path_, life[0]);
  close(life[0]);
  if (made && directory->guard_ > 0) return directory;
  const std::string text = absl::StrCat("cannot create a directory such as ", directory->path_);
  // A name that is taken belongs to someone else.
  if (!made) directory->path_.clear();
  return absl::ErrnoToStatus(made ? errno : error, text);
}

GuardedDirectory::~GuardedDirectory() {
  close(life_);
  while (guard_ > 0 && waitpid(guard_, nullptr, 0) < 0 && errno == EINTR) {
  }
  // The guard may have been killed.
  if (!path_.empty()) RemoveAll(path_);
}

}  // namespace ballast
