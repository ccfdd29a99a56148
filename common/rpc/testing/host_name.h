// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ballast {

// A host name whose address the test decides, in a mount namespace of this process. Create it before any other thread.
class HostName {
 public:
  explicit HostName(std::string name) : name_(std::move(name)) {}

  // Returns an empty text, or the reason of the failure.
  std::string Open() {
    path_ = absl::StrCat(testing::TempDir(), "/hosts_", getpid());
    const uid_t user = geteuid();
    const gid_t group = getegid();
    // Without root privileges this also needs a user namespace.
    if (unshare(CLONE_NEWNS) != 0) {
      if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return std::strerror(errno);
      std::ofstream("/proc/self/setgroups") << "deny";
      std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
      std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
    }
    Forget();
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(path_.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
      return std::strerror(errno);
    }
    // Every lookup also asks DNS for IPv6 addresses. Here that fails within a second; a machine's own DNS server that
    // does not respond would add its timeout of 5 s to each lookup.
    const std::string resolvers = absl::StrCat(path_, ".resolvers");
    std::ofstream(resolvers) << "nameserver 127.0.0.1\noptions retry:1 attempts:1\n";
    const bool bound = mount(resolvers.c_str(), "/etc/resolv.conf", nullptr, MS_BIND, nullptr) == 0;
    return bound || errno == ENOENT ? "" : std::strerror(errno);
  }
  void MoveTo(const std::string& address) const { std::ofstream(path_) << address << " " << name_ << "\n"; }
  void Forget() const { std::ofstream{path_}; }

  // Returns the target of a channel.
  std::string Target(int port) const { return absl::StrCat("dns:///", name_, ":", port); }

 private:
  const std::string name_;
  std::string path_;
};

}  // namespace ballast
