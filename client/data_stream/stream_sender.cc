// SPDX-License-Identifier: Apache-2.0
#include "client/data_stream/stream_sender.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/data_stream/stream_frame.h"
#include "common/data_stream/stream_socket.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/pacing.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Limit on each of the three steps: to ask, to connect, and to begin.
constexpr absl::Duration kStepTimeout = absl::Seconds(5);
// Interval between checks whether a step is still wanted.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(100);
// Pause before the next attempt after the stream has ended, or there was no room for one.
constexpr absl::Duration kShortPause = absl::Seconds(1);
// Pause after the server has offered a stream, but none can be opened: something between the two does not pass it on.
constexpr absl::Duration kLongPause = absl::Minutes(1);

absl::Status Unreachable(const std::string& peer, int error) {
  return WithReason(v1::ERROR_REASON_UNREACHABLE,
                    absl::UnavailableError(absl::StrCat(peer, ": ", std::strerror(error))));
}

// Returns the address's length; 0 if `peer` is no TCP address.
socklen_t ParsePeer(const std::string& peer, sockaddr_storage& address) {
  // gRPC writes an IPv6 address as in a URI.
  const std::string text = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) return 0;
  absl::string_view host(text.data(), colon);
  if (absl::ConsumePrefix(&host, "ipv4:")) {
    auto& to = reinterpret_cast<sockaddr_in&>(address);
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    return inet_pton(AF_INET, std::string(host).c_str(), &to.sin_addr) == 1 ? sizeof(to) : 0;
  }
  if (!absl::ConsumePrefix(&host, "ipv6:[") || !absl::ConsumeSuffix(&host, "]")) return 0;
  auto& to = reinterpret_cast<sockaddr_in6&>(address);
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(static_cast<uint16_t>(port));
  return inet_pton(AF_INET6, std::string(host).c_str(), &to.sin6_addr) == 1 ? sizeof(to) : 0;
}

// Waits in small steps, so that it can give up.
absl::Status Await(const StreamSocket& socket, short events, absl::Time deadline,
                   const std::function<bool()>& give_up) {
  while (true) {
    if (give_up()) return absl::CancelledError("no longer wanted");
    const absl::Time step = std::min(deadline, absl::Now() + kCheckInterval);
    absl::Status status = socket.Wait(events, step);
    if (status.ok() || !absl::IsDeadlineExceeded(status) || step == deadline) return status;
  }
}

// Sends the opening and waits for the answer.
absl::Status Begin(StreamSocket& socket, const std::string& ticket, const std::function<bool()>& give_up) {
  const absl::Time deadline = absl::Now() + kStepTimeout;
  const std::string opening = absl::StrCat(kStreamOpening, ticket);
  const std::array<iovec, 1> piece = {{{const_cast<char*>(opening.data()), opening.size()}}};
  // A new connection has room for that.
  const absl::StatusOr<size_t> sent = socket.Write(piece);
  if (!sent.ok()) return sent.status();
  if (*sent != opening.size()) return absl::InternalError("the connection takes no bytes");
  std::array<char, kStreamOpening.size()> answer;
  size_t got = 0;
  while (got < answer.size()) {
    const absl::StatusOr<size_t> more = socket.Read(absl::MakeSpan(answer).subspan(got));
    if (!more.ok()) return more.status();
    got += *more;
    if (*more > 0) continue;
    if (absl::Status status = Await(socket, POLLIN, deadline, give_up); !status.ok()) return status;
  }
  if (absl::string_view(answer.data(), answer.size()) == kStreamOpening) return absl::OkStatus();
  return absl::InternalError("what answers is no data stream");
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamSocket>> ConnectToPeer(const std::string& peer, absl::Duration timeout,
                                                            const std::function<bool()>& give_up) {
  sockaddr_storage address = {};
  const socklen_t length = ParsePeer(peer, address);
  if (length == 0) return absl::InvalidArgumentError(absl::StrCat("got \"", peer, "\", want a TCP address"));
  auto connection =
      std::make_unique<StreamSocket>(socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int file = connection->descriptor();
  if (file < 0) return absl::ErrnoToStatus(errno, "no socket");
  const int at_once = 1;
  setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  StopPacingOnLoopback(file, reinterpret_cast<const sockaddr*>(&address));
  if (connect(file, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EINPROGRESS) return Unreachable(peer, errno);
    if (absl::Status status = Await(*connection, POLLOUT, absl::Now() + timeout, give_up); !status.ok()) return status;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Unreachable(peer, error);
  }
  return connection;
}

std::shared_ptr<StreamCaller> StreamSender::caller() {
  absl::MutexLock lock(&mutex_);
  if (caller_ != nullptr) return caller_;
  if (!shutdown_ && !serving_ && absl::Now() >= open_at_) {
    serving_ = true;
    thread_.Start("data stream", [this] { Serve(); });
  }
  return nullptr;
}

void StreamSender::Shutdown() {
  absl::MutexLock lock(&mutex_);
  shutdown_ = true;
  if (asking_ != nullptr) asking_->TryCancel();
  if (caller_ != nullptr) caller_->End(absl::CancelledError("shut down"));
}

absl::StatusOr<std::shared_ptr<StreamCaller>> StreamSender::Open(absl::Duration& pause) {
  v1::OpenDataStreamRequest request;
  request.set_job(job_);
  v1::OpenDataStreamResponse offer;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kStepTimeout));
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) return absl::CancelledError("shut down");
    asking_ = &context;
  }
  v1::ParameterService::Stub stub(channel_());
  const grpc::Status asked = stub.OpenDataStream(&context, request, &offer);
  {
    absl::MutexLock lock(&mutex_);
    asking_ = nullptr;
  }
  if (!asked.ok()) return FromGrpcStatus(asked);
  // From here on, what fails is likely to fail again.
  pause = kLongPause;
  const auto give_up = [this] { return is_shut_down(); };
  absl::StatusOr<std::unique_ptr<StreamSocket>> socket = ConnectToPeer(context.peer(), kStepTimeout, give_up);
  if (!socket.ok()) return socket.status();
  (*socket)->LimitSilence(silence_);
  if (absl::Status status = Begin(**socket, offer.ticket(), give_up); !status.ok()) return status;
  if (!offer.key().empty()) {
    absl::Status status = (*socket)->Encrypt(StreamSocket::Side::kClient, offer.key(), kStepTimeout);
    if (!status.ok()) return status;
  }
  return std::make_shared<StreamCaller>(*std::move(socket), silence_, offer.calls());
}

void StreamSender::Serve() {
  absl::Duration pause = kShortPause;
  const absl::StatusOr<std::shared_ptr<StreamCaller>> opened = Open(pause);
  if (opened.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      if (shutdown_) (*opened)->End(absl::CancelledError("shut down"));
      caller_ = *opened;
    }
    (*opened)->Run();
    pause = kShortPause;
  } else if (absl::IsUnimplemented(opened.status())) {
    pause = absl::InfiniteDuration();
  }
  absl::MutexLock lock(&mutex_);
  caller_.reset();
  serving_ = false;
  open_at_ = absl::Now() + pause;
}

}  // namespace ballast
