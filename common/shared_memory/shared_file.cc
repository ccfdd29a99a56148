// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

std::string PathOf(uint32_t process, uint32_t file) { return absl::StrCat("/proc/", process, "/fd/", file); }

}  // namespace

absl::StatusOr<MadeFile> MakeSharedFile(const char* name, uint64_t bytes, int seals) {
  const auto error = [&](absl::string_view call) {
    return WithReason(v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE,
                      absl::ResourceExhaustedError(
                          absl::StrCat("shared memory of ", bytes, " bytes: ", call, ": ", std::strerror(errno))));
  };
  const int descriptor = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return error("memfd_create");
  absl::Cleanup close_it = [descriptor] { close(descriptor); };
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return error("ftruncate");
  // Mapped before it is sealed, because a seal may forbid others to map it for writing.
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (memory == MAP_FAILED) return error("mmap");
  if (fcntl(descriptor, F_ADD_SEALS, seals) != 0) {
    const absl::Status refused = error("sealing it");
    munmap(memory, bytes);
    return refused;
  }
  std::move(close_it).Cancel();
  return MadeFile{descriptor, static_cast<char*>(memory)};
}

absl::StatusOr<int> OpenSharedFile(const SharedFile& want) {
  const std::string path = PathOf(want.process, want.file);
  const auto error = [&](absl::string_view why) { return SharedFileError(want.process, want.file, why); };
  // Checked before open, because opening any other kind of file could have an effect.
  if (!absl::StartsWith(LinkTarget(path), absl::StrCat("/memfd:", want.name))) {
    return error("is not memory that Ballast shares");
  }
  const int descriptor = open(path.c_str(), want.flags | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return error(std::strerror(errno));
  absl::Cleanup close_it = [descriptor] { close(descriptor); };
  struct stat found = {};
  if (fstat(descriptor, &found) != 0 || static_cast<uint64_t>(found.st_size) != want.bytes ||
      (fcntl(descriptor, F_GET_SEALS) & want.seals) != want.seals) {
    return error(absl::StrCat("is not ", want.bytes, " bytes that cannot shrink"));
  }
  std::move(close_it).Cancel();
  return descriptor;
}

absl::Status SharedFileError(uint32_t process, uint32_t file, absl::string_view why) {
  return WithReason(v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE,
                    absl::FailedPreconditionError(absl::StrCat("shared memory at ", PathOf(process, file), ": ", why)));
}

std::string LinkTarget(const std::string& path) {
  char target[256];
  const ssize_t size = readlink(path.c_str(), target, sizeof(target));
  return size < 0 ? std::string() : std::string(target, size);
}

}  // namespace ballast
