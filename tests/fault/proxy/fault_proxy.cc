// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/proxy/fault_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

// Bytes read at once, and bytes queued for a peer that does not read.
constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kMaxQueuedBytes = 1 << 20;

// Frame type and flag of HTTP/2.
constexpr uint8_t kHeadersFrame = 1;
constexpr uint8_t kEndStream = 1;

void CloseWithReset(int socket) {
  const linger at_once = {1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(socket);
}

bool Again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == EINPROGRESS; }

absl::StatusOr<sockaddr_in> ParseAddress(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  uint32_t port = 0;
  if (parts.size() != 2 || inet_pton(AF_INET, parts[0].c_str(), &address.sin_addr) != 1 ||
      !absl::SimpleAtoi(parts[1], &port) || port == 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("target is \"", text, "\", want an IPv4 address and a port"));
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

std::optional<size_t> ReplyScanner::Next(absl::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (!begun_) {
      begun_ = true;
      // HTTP/2 begins with the length of a short frame.
      data_stream_ = bytes[at] == kStreamOpening[0];
      if (data_stream_) payload_left_ = kStreamOpening.size();
    }
    if (payload_left_ > 0) {
      const size_t skipped = std::min(payload_left_, bytes.size() - at);
      payload_left_ -= skipped;
      at += skipped;
      continue;
    }
    header_[header_bytes_++] = static_cast<uint8_t>(bytes[at++]);
    if (header_bytes_ < (data_stream_ ? kStreamFrameBytes : kHeaderBytes)) continue;
    header_bytes_ = 0;
    if (data_stream_) {
      const absl::StatusOr<StreamFrame> frame =
          DecodeStreamFrame({reinterpret_cast<const char*>(header_), kStreamFrameBytes});
      payload_left_ = frame.ok() ? frame->bytes : 0;
      return at;
    }
    payload_left_ = size_t{header_[0]} << 16 | size_t{header_[1]} << 8 | header_[2];
    if (header_[3] == kHeadersFrame && (header_[4] & kEndStream) != 0) return at;
  }
  return std::nullopt;
}

// Owns two sockets and the bytes in flight between them.
class FaultProxy::Connection {
 public:
  Connection(int client, int server, uint64_t seed)
      : up_{client, server, std::mt19937_64(seed)}, down_{server, client, std::mt19937_64(~seed)}, random_(seed + 1) {}
  Connection(const Connection&) = delete;
  // Closes with a reset, unless Close was called.
  ~Connection() {
    if (ended_) return;
    CloseWithReset(up_.from);
    CloseWithReset(down_.from);
  }

  void AddTo(std::vector<pollfd>& polled) const {
    polled.push_back({up_.from, Events(up_, down_), 0});
    polled.push_back({down_.from, Events(down_, up_), 0});
  }

  // Next time at which there is work though no socket is ready.
  absl::Time due() const {
    const absl::Time now = absl::Now();
    absl::Time due = silent_until_;
    for (const Way* way : {&up_, &down_}) {
      // Pieces that are already due wait only for their socket.
      if (!way->queue.empty() && way->queue.front().due > now) due = std::min(due, way->queue.front().due);
    }
    return due;
  }

  // Moves all bytes that can be moved; returns false when the connection is over.
  bool Move(const FaultPlan& plan, Tally& tally) {
    if (silent_until_ <= absl::Now()) return false;
    return Read(up_, plan, tally) && Read(down_, plan, tally) && Write(up_, tally) && Write(down_, tally) &&
           !Finished();
  }

 private:
  struct Piece {
    absl::Time due;
    std::string bytes;
    // The connection ends after this piece.
    bool last = false;
  };
  struct Way {
    int from, to;
    std::mt19937_64 random;
    std::deque<Piece> queue = {};
    size_t queued_bytes = 0;
    // The sender has ended; the receiver was told.
    bool ended = false, told = false;
  };

  // Events to poll for on the socket that `out` reads from and `in` writes to.
  static short Events(const Way& out, const Way& in) {
    short events = 0;
    if (!out.ended && out.queued_bytes < kMaxQueuedBytes) events |= POLLIN;
    if (!in.queue.empty() && in.queue.front().due <= absl::Now()) events |= POLLOUT;
    return events;
  }

  static double Share(std::mt19937_64& random) { return std::uniform_real_distribution<double>(0, 1)(random); }

  bool Read(Way& way, const FaultPlan& plan, Tally& tally) {
    if (way.ended || way.queued_bytes >= kMaxQueuedBytes) return true;
    std::string bytes(kPieceBytes, '\0');
    const ssize_t got = recv(way.from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return Again();
    if (got == 0) {
      way.ended = true;
      return true;
    }
    bytes.resize(got);
    Piece piece{absl::Now(), std::move(bytes)};
    if (way.queue.empty() || !way.queue.back().last) Plan(way, plan, std::move(piece), tally);
    return true;
  }

  // Decides whether a piece is delayed, cut or dropped.
  void Plan(Way& way, const FaultPlan& plan, Piece piece, Tally& tally) {
    // Nothing follows a lost reply.
    if (&way == &down_ && silent_until_ != absl::InfiniteFuture()) return;
    if (plan.delay > absl::ZeroDuration()) {
      piece.due += Share(way.random) * plan.delay;
      if (!way.queue.empty()) piece.due = std::max(piece.due, way.queue.back().due);
    }
    if (&way == &up_ && plan.bytes_per_second > 0) {
      carried_until_ = std::max(carried_until_, absl::Now()) +
                       absl::Seconds(static_cast<double>(piece.bytes.size()) / plan.bytes_per_second);
      piece.due = std::max(piece.due, carried_until_);
    }
    if (&way == &down_) LoseReplies(plan, piece, tally);
    if (Share(way.random) < plan.cut) {
      ++tally.cuts;
      piece.bytes.resize(piece.bytes.size() / 2);
      piece.last = true;
    }
    way.queued_bytes += piece.bytes.size();
    way.queue.push_back(std::move(piece));
  }

  void LoseReplies(const FaultPlan& plan, Piece& piece, Tally& tally) {
    size_t at = 0;
    while (const auto end = scanner_.Next(absl::string_view(piece.bytes).substr(at))) {
      ++tally.replies;
      at += *end;
      if (Share(random_) >= plan.drop_replies) continue;
      ++tally.dropped_replies;
      // A part of the frame's header may pass; it means nothing without its end.
      piece.bytes.resize(at - 1);
      if (Share(random_) < 0.5) {
        silent_until_ = absl::Now() + plan.silence;
      } else {
        piece.last = true;
      }
      return;
    }
  }

  bool Write(Way& way, Tally& tally) {
    while (!way.queue.empty() && way.queue.front().due <= absl::Now()) {
      Piece& piece = way.queue.front();
      const ssize_t sent = send(way.to, piece.bytes.data(), piece.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) return Again();
      tally.bytes += sent;
      way.queued_bytes -= sent;
      piece.bytes.erase(0, sent);
      if (!piece.bytes.empty()) return true;
      if (piece.last) return false;
      way.queue.pop_front();
    }
    if (way.ended && way.queue.empty() && !way.told) {
      way.told = true;
      shutdown(way.to, SHUT_WR);
    }
    return true;
  }

  bool Finished() {
    if (!up_.told || !down_.told) return false;
    close(up_.from);
    close(down_.from);
    ended_ = true;
    return true;
  }

  Way up_, down_;
  // Time at which all bytes received so far are carried to the server, at the plan's rate.
  absl::Time carried_until_ = absl::InfinitePast();
  // Random numbers for replies.
  std::mt19937_64 random_;
  ReplyScanner scanner_;
  // After a lost reply, the server's bytes are dropped until this time.
  absl::Time silent_until_ = absl::InfiniteFuture();
  bool ended_ = false;
};

// The code of the proxy's thread.
class FaultProxy::Loop {
 public:
  Loop(FaultProxy* proxy, uint64_t seed) : proxy_(*proxy), seed_(seed) {}

  void Run() {
    while (true) {
      FaultPlan plan;
      bool partitioned = false, cut_all = false;
      {
        absl::MutexLock lock(&proxy_.mutex_);
        if (proxy_.ending_) return;
        plan = proxy_.plan_;
        target_ = proxy_.target_;
        partitioned = proxy_.silent_ = proxy_.partitioned_;
        cut_all = std::exchange(proxy_.cut_all_, false);
      }
      if (cut_all) connections_.clear();
      if (!partitioned) {
        Accept();
        connections_.erase(std::remove_if(connections_.begin(), connections_.end(),
                                          [&](auto& connection) { return !connection->Move(plan, proxy_.tally_); }),
                           connections_.end());
      }
      Await(partitioned);
    }
  }

 private:
  void Accept() {
    while (true) {
      const int client = accept4(proxy_.listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (client < 0) return;
      const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const int yes = 1;
      setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      if (server < 0 ||
          (connect(server, reinterpret_cast<const sockaddr*>(&target_), sizeof(target_)) != 0 && !Again())) {
        ++proxy_.tally_.refused;
        CloseWithReset(client);
        if (server >= 0) close(server);
        continue;
      }
      const uint64_t number = proxy_.tally_.connections++;
      connections_.push_back(std::make_unique<Connection>(client, server, seed_ * 1000003 + number));
    }
  }

  void Await(bool partitioned) {
    std::vector<pollfd> polled = {{proxy_.wake_, POLLIN, 0}};
    absl::Duration time = absl::Seconds(1);
    if (!partitioned) {
      polled.push_back({proxy_.listener_, POLLIN, 0});
      for (const auto& connection : connections_) {
        connection->AddTo(polled);
        time = std::min(time, connection->due() - absl::Now());
      }
    }
    const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(time, absl::Milliseconds(1)));
    poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(milliseconds, 0)));
    uint64_t ignored;
    if (polled[0].revents != 0 && read(proxy_.wake_, &ignored, sizeof(ignored)) < 0) return;
  }

  FaultProxy& proxy_;
  sockaddr_in target_ = {};
  const uint64_t seed_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

FaultProxy::FaultProxy(int listener, std::string address, sockaddr_in target)
    : address_(std::move(address)),
      listener_(listener),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      target_(target) {}

absl::StatusOr<std::unique_ptr<FaultProxy>> FaultProxy::Start(const std::string& target, FaultPlan plan,
                                                              uint64_t seed) {
  const absl::StatusOr<sockaddr_in> to = ParseAddress(target);
  if (!to.ok()) return to.status();
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return absl::ErrnoToStatus(errno, "socket");
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(own);
  if (bind(listener, reinterpret_cast<sockaddr*>(&own), size) != 0 || listen(listener, 128) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, "cannot listen on the loopback");
    close(listener);
    return status;
  }
  std::unique_ptr<FaultProxy> proxy(new FaultProxy(listener, absl::StrCat("127.0.0.1:", ntohs(own.sin_port)), *to));
  proxy->SetPlan(plan);
  proxy->thread_ = std::thread([self = proxy.get(), seed] { Loop(self, seed).Run(); });
  return proxy;
}

FaultProxy::~FaultProxy() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
  close(listener_);
  close(wake_);
}

void FaultProxy::Wake() const {
  const uint64_t one = 1;
  // The counter is full only if the thread is already woken.
  if (write(wake_, &one, sizeof(one)) < 0) return;
}

absl::Status FaultProxy::SetTarget(const std::string& target) {
  const absl::StatusOr<sockaddr_in> to = ParseAddress(target);
  if (!to.ok()) return to.status();
  {
    absl::MutexLock lock(&mutex_);
    target_ = *to;
  }
  Wake();
  return absl::OkStatus();
}

void FaultProxy::SetPlan(FaultPlan plan) {
  {
    absl::MutexLock lock(&mutex_);
    plan_ = plan;
  }
  Wake();
}

void FaultProxy::Partition() {
  {
    absl::MutexLock lock(&mutex_);
    partitioned_ = true;
  }
  Wake();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&silent_));
}

void FaultProxy::Heal() {
  {
    absl::MutexLock lock(&mutex_);
    partitioned_ = false;
  }
  Wake();
}

void FaultProxy::CutAll() {
  {
    absl::MutexLock lock(&mutex_);
    cut_all_ = true;
  }
  Wake();
}

FaultProxy::Counts FaultProxy::counts() const {
  return {tally_.connections, tally_.refused, tally_.replies, tally_.dropped_replies, tally_.cuts, tally_.bytes};
}

}  // namespace ballast
