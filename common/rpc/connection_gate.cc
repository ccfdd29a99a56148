// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/connection_gate.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/rpc/pacing.h"

namespace ballast {
namespace {

constexpr uint32_t kDefaultConnections = 1024;
// Most connections of a worker to one port: for calls, a data stream and the coordinator, while one is replaced; and
// those of servers, standbys and commands.
constexpr uint64_t kConnectionsPerWorker = 6, kOtherConnections = 64;
constexpr absl::Duration kTellPause = absl::Minutes(1);
// Files other than connections: logs, certificates, libraries, shared memory.
constexpr uint64_t kOtherFiles = 256;
// A connection's own descriptor and the one by which it is watched, at each of a server's two ports.
constexpr uint64_t kFilesPerConnection = 4;
// Time for a connection to say whose it is.
constexpr absl::Duration kSortTime = absl::Seconds(1);
// Interval between checks whether there are files again.
constexpr int kPauseMilliseconds = 100;

absl::Status CannotListen(const std::string& host, int port, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", host, ":", port, ": ", why, "; choose another, or port 0 for a free port"));
}

void SetOption(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

int PortOf(int socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Returns a listening socket, or -1 with errno.
int ListenAt(const addrinfo& at, int port) {
  sockaddr_storage address = {};
  memcpy(&address, at.ai_addr, at.ai_addrlen);
  if (at.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  }
  const int listener = socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0) return -1;
  // Otherwise a server that restarts at once could not get its port.
  SetOption(listener, SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.ai_family == AF_INET6) SetOption(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  StopPacingOnLoopback(listener, reinterpret_cast<const sockaddr*>(&address));
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), at.ai_addrlen) == 0 &&
      listen(listener, SOMAXCONN) == 0) {
    return listener;
  }
  const int error = errno;
  close(listener);
  errno = error;
  return -1;
}

// Returns a listening socket for each address that works, all at the same port, or none with errno.
std::vector<int> ListenAtAll(const addrinfo* addresses, int port) {
  std::vector<int> listeners;
  int error = EADDRNOTAVAIL;
  for (const addrinfo* at = addresses; at != nullptr; at = at->ai_next) {
    const int listener = ListenAt(*at, port);
    if (listener >= 0) {
      listeners.push_back(listener);
      port = PortOf(listener);
    } else if (errno == EADDRINUSE || errno == EACCES) {
      error = errno;
      for (const int other : listeners) close(other);
      listeners.clear();
      break;
    }
    // Otherwise others may work: a name may have an address of a disabled protocol.
  }
  errno = error;
  return listeners;
}

// Ports to try when any will do, the last of them 0. Those that Linux does not give to connections come first: while a
// server that ended starts again, no client on this machine gets its port.
std::vector<int> FreePortsToTry() {
  constexpr int kFirst = 20'000;
  // Kubernetes gives those from there on to services.
  constexpr int kEnd = 30'000;
  constexpr int kTries = 20;
  int first_of_connections = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_of_connections;
  std::vector<int> ports;
  if (const int end = std::min(kEnd, first_of_connections); end > kFirst) {
    std::random_device random;
    std::uniform_int_distribution<int> port(kFirst, end - 1);
    for (int i = 0; i < kTries; ++i) ports.push_back(port(random));
  }
  ports.push_back(0);
  return ports;
}

// Resets the connection, so that the peer knows at once and no socket state remains here.
void Reset(int socket) {
  const linger at_once = {1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(socket);
}

}  // namespace

absl::StatusOr<uint32_t> MakeRoomForConnections(uint32_t wanted, uint32_t workers) {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  const uint64_t most = files.rlim_max < kOtherFiles ? 0 : (files.rlim_max - kOtherFiles) / kFilesPerConnection;
  if (most < std::max(wanted, 1u)) {
    return absl::FailedPreconditionError(
        absl::StrCat("connections: got ", wanted, ", want at most ", most, ", because this process may open at most ",
                     files.rlim_max, " files; raise that limit (ulimit -Hn) to ",
                     std::max(wanted, 1u) * kFilesPerConnection + kOtherFiles, ", or allow fewer connections"));
  }
  const uint64_t usual = std::max<uint64_t>(kDefaultConnections, kOtherConnections + kConnectionsPerWorker * workers);
  const uint64_t room = std::min<uint64_t>(most, wanted == 0 ? usual : wanted);
  const rlim_t needed = room * kFilesPerConnection + kOtherFiles;
  if (files.rlim_cur < needed) {
    files.rlim_cur = needed;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0)
      return absl::ErrnoToStatus(errno, "cannot raise the limit on open files");
  }
  return static_cast<uint32_t>(room);
}

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(const std::string& host, int port,
                                                                       uint32_t most) {
  std::unique_ptr<ConnectionGate> gate(new ConnectionGate(most));
  if (absl::Status status = gate->Prepare(host, port); !status.ok()) return status;
  return gate;
}

absl::Status ConnectionGate::Prepare(const std::string& host, int port) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (epoll_ < 0 || wake_ < 0) return absl::ErrnoToStatus(errno, "cannot watch connections");
  const std::string name(absl::StripSuffix(absl::StripPrefix(host, "["), "]"));
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(name.c_str(), "0", &hints, &found); error != 0) {
    return CannotListen(host, port, absl::StrCat("unknown host (", gai_strerror(error), ")"));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  for (const int candidate : port == 0 ? FreePortsToTry() : std::vector<int>{port}) {
    listeners_ = ListenAtAll(addresses.get(), candidate);
    if (!listeners_.empty()) break;
    if (errno != EADDRINUSE && errno != EACCES) return CannotListen(host, port, "the host is not this machine");
  }
  if (listeners_.empty()) return CannotListen(host, port, errno == EACCES ? "permission denied" : "the port is in use");
  port_ = PortOf(listeners_.front());
  return absl::OkStatus();
}

void ConnectionGate::Listen(bool on) {
  paused_ = !on;
  for (const int listener : listeners_) {
    epoll_event event = {};
    event.events = on ? static_cast<uint32_t>(EPOLLIN) : 0;
    event.data.fd = listener;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, listener, &event);
  }
}

void ConnectionGate::Open(std::function<void(int)> take, ConnectionOpening opening, std::function<void()> on_full) {
  take_ = std::move(take);
  opening_ = std::move(opening);
  on_full_ = std::move(on_full);
  std::vector<int> files = listeners_;
  files.push_back(wake_);
  for (const int file : files) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = file;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, file, &event);
  }
  thread_ = std::thread([this] { Run(); });
}

bool ConnectionGate::IsListener(int file) const {
  return std::find(listeners_.begin(), listeners_.end(), file) != listeners_.end();
}

void ConnectionGate::Run() {
  while (true) {
    std::array<epoll_event, 64> events;
    const int rest = SortLate();
    const int count = epoll_wait(epoll_, events.data(), events.size(), paused_ ? kPauseMilliseconds : rest);
    for (int i = 0; i < count; ++i) {
      const int file = events[i].data.fd;
      if (file == wake_) return;
      if (IsListener(file)) {
        Accept(file);
        continue;
      }
      if (const auto found = unsorted_.find(file); found != unsorted_.end()) {
        Sort(file, found->second.socket, (events[i].events & EPOLLHUP) != 0);
      }
      if ((events[i].events & EPOLLHUP) != 0) {
        // Remove it explicitly: the other descriptor may stay open, and its events would carry this number.
        epoll_ctl(epoll_, EPOLL_CTL_DEL, file, nullptr);
        watched_[file] = false;
        close(file);
        --open_;
      }
    }
    if (paused_ && count == 0) Listen(true);
  }
}

void ConnectionGate::Accept(int listener) {
  const int socket = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (socket < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) Listen(false);
    return;
  }
  if (open_ >= most_) {
    ++refused_;
    Reset(socket);
    if (on_full_ && absl::Now() >= tells_again_) {
      on_full_();
      tells_again_ = absl::Now() + kTellPause;
    }
    return;
  }
  const int watched = fcntl(socket, F_DUPFD_CLOEXEC, 0);
  // Hang-ups are always reported. The first bytes matter if they say whose connection it is.
  epoll_event event = {};
  event.events = opening_.text.empty() ? EPOLLET : EPOLLET | EPOLLIN;
  event.data.fd = watched;
  if (watched < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, watched, &event) != 0) {
    if (watched >= 0) close(watched);
    ++refused_;
    Listen(false);
    return Reset(socket);
  }
  if (watched_.size() <= static_cast<size_t>(watched)) watched_.resize(watched + 1);
  watched_[watched] = true;
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  ++open_;
  if (opening_.text.empty()) return take_(socket);
  if (!Sort(watched, socket, false)) unsorted_[watched] = {socket, absl::Now() + kSortTime};
}

bool ConnectionGate::Sort(int watched, int socket, bool late) {
  std::string begin(opening_.bytes, '\0');
  const ssize_t got = recv(socket, begin.data(), begin.size(), MSG_PEEK);
  const size_t bytes = got > 0 ? static_cast<size_t>(got) : 0;
  // The peer sends no more.
  late = late || got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  const bool fits = absl::StartsWith(opening_.text, begin.substr(0, std::min(bytes, opening_.text.size())));
  if (fits && bytes < opening_.bytes && !late) return false;
  unsorted_.erase(watched);
  // From now on only the end of the connection matters.
  epoll_event event = {};
  event.events = EPOLLET;
  event.data.fd = watched;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, watched, &event);
  (fits && bytes == opening_.bytes ? opening_.take : take_)(socket);
  return true;
}

int ConnectionGate::SortLate() {
  const absl::Time now = absl::Now();
  absl::Time next = absl::InfiniteFuture();
  std::vector<std::pair<int, int>> late;
  for (const auto& [watched, connection] : unsorted_) {
    if (connection.late <= now) {
      late.emplace_back(watched, connection.socket);
    } else {
      next = std::min(next, connection.late);
    }
  }
  for (const auto& [watched, socket] : late) Sort(watched, socket, true);
  return next == absl::InfiniteFuture() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(next - now)) + 1;
}

void ConnectionGate::Close() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
    thread_.join();
  }
  for (size_t file = 0; file < watched_.size(); ++file) {
    if (watched_[file]) close(static_cast<int>(file));
  }
  watched_.clear();
  for (const auto& [watched, connection] : unsorted_) close(connection.socket);
  unsorted_.clear();
  for (const int listener : listeners_) close(listener);
  listeners_.clear();
}

ConnectionGate::~ConnectionGate() {
  Close();
  if (epoll_ >= 0) close(epoll_);
  if (wake_ >= 0) close(wake_);
}

}  // namespace ballast
