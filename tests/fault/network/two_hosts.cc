// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/network/two_hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/fault/programs/program.h"

namespace ballast {
namespace {

absl::Status Refused(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("cannot set up network namespaces: ", what, ": ", std::strerror(errno)));
}

int ThisNetwork() { return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC); }

// Runs iproute2 on the current host of this thread.
absl::Status Ip(const std::string& words) {
  if (std::system(absl::StrCat("PATH=$PATH:/usr/sbin:/sbin ip ", words, " >/dev/null 2>&1").c_str()) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("cannot set up network namespaces: \"ip ", words, "\" failed"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TwoHosts>> TwoHosts::Create() {
  std::unique_ptr<TwoHosts> hosts(new TwoHosts);
  hosts->home_ = ThisNetwork();
  if (!EnterNamespaces(CLONE_NEWNET)) return Refused("unshare");
  hosts->far_ = ThisNetwork();
  if (unshare(CLONE_NEWNET) != 0) return Refused("unshare");
  hosts->near_ = ThisNetwork();
  if (hosts->far_ < 0 || hosts->near_ < 0) return Refused("open");
  if (absl::Status status = hosts->Connect(); !status.ok()) return status;
  return hosts;
}

TwoHosts::~TwoHosts() {
  // A user namespace cannot be left; the process ends soon.
  if (home_ >= 0 && setns(home_, CLONE_NEWNET) != 0) errno = 0;
  for (int handle : {home_, near_, far_}) {
    if (handle >= 0) close(handle);
  }
}

absl::Status TwoHosts::Connect() {
  absl::Status status = Ip("link add near type veth peer name far");
  status.Update(Ip(absl::StrCat("link set far netns /proc/", getpid(), "/fd/", far_)));
  status.Update(Ip("addr add 10.77.0.2/30 dev near"));
  status.Update(Ip("link set near up"));
  status.Update(Ip("link set lo up"));
  if (!status.ok()) return status;
  return OnFar([] {
    absl::Status far = Ip("addr add 10.77.0.1/30 dev far");
    far.Update(Ip("link set far up"));
    far.Update(Ip("link set lo up"));
    return far;
  });
}

absl::Status TwoHosts::OnFar(const std::function<absl::Status()>& run) const {
  if (setns(far_, CLONE_NEWNET) != 0) return Refused("setns");
  const absl::Status status = run();
  if (setns(near_, CLONE_NEWNET) != 0) return Refused("setns");
  return status;
}

absl::Status TwoHosts::Pull() const {
  return OnFar([] { return Ip("link set far down"); });
}

absl::Status TwoHosts::Plug() const {
  return OnFar([] { return Ip("link set far up"); });
}

}  // namespace ballast
