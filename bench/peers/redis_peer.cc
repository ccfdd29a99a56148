// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/redis_peer.h"

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

constexpr char kProgram[] = "redis-server";
constexpr absl::Duration kStart = absl::Seconds(15);
constexpr absl::Duration kPoll = absl::Milliseconds(10);
constexpr timeval kTimeout = {60, 0};
constexpr size_t kIdsPerCommand = 1000;

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

// Empty if it is not on PATH.
std::string FindProgram() {
  const char* const path = getenv("PATH");
  for (absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string file = absl::StrCat(folder, "/", kProgram);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

// A TCP port that was free a moment ago; 0 if there is none.
int FindFreePort() {
  const int handle = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = bind(handle, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                     getsockname(handle, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(handle);
  return bound ? ntohs(address.sin_port) : 0;
}

absl::string_view AsKey(const uint64_t& id) {
  return absl::string_view(reinterpret_cast<const char*>(&id), sizeof(id));
}

// The words of a command. Does not own them. Thread safety: confined to one thread.
class CommandWords {
 public:
  void Add(absl::string_view word) {
    words_.push_back(word.data());
    sizes_.push_back(word.size());
  }
  bool AppendTo(redisContext* connection) {
    return redisAppendCommandArgv(connection, words_.size(), words_.data(), sizes_.data()) == REDIS_OK;
  }

 private:
  std::vector<const char*> words_;
  std::vector<size_t> sizes_;
};

// Null if the connection failed.
Reply NextReply(redisContext* connection) {
  void* reply = nullptr;
  if (redisGetReply(connection, &reply) != REDIS_OK) return nullptr;
  return Reply(static_cast<redisReply*>(reply));
}

}  // namespace

void RedisPeer::Disconnect::operator()(redisContext* context) const { redisFree(context); }

absl::StatusOr<std::unique_ptr<RedisPeer>> RedisPeer::Start(const ScratchFolder& folder, int connections) {
  const std::string program = FindProgram();
  if (program.empty()) return absl::NotFoundError(absl::StrCat(kProgram, " is not on PATH"));
  const int port = FindFreePort();
  absl::StatusOr<ChildProgram> child =
      ChildProgram::Start({program, "--port", absl::StrCat(port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
                           "no", "--dir", folder.path()});
  if (!child.ok()) return child.status();
  const absl::Time deadline = absl::Now() + kStart;
  while (absl::Now() < deadline) {
    std::vector<Connection> connected;
    while (static_cast<int>(connected.size()) < connections) {
      Connection connection = Connect(port);
      if (connection == nullptr) break;
      connected.push_back(std::move(connection));
    }
    if (static_cast<int>(connected.size()) == connections) {
      return std::unique_ptr<RedisPeer>(new RedisPeer(*std::move(child), std::move(connected)));
    }
    if (!child->Hear(kPoll)) break;
  }
  return absl::DeadlineExceededError(absl::StrCat(kProgram, " does not serve", child->LastWords()));
}

RedisPeer::Connection RedisPeer::Connect(int port) {
  Connection connection(redisConnectWithTimeout("127.0.0.1", port, kTimeout));
  if (connection == nullptr || connection->err != 0) return nullptr;
  if (redisSetTimeout(connection.get(), kTimeout) != REDIS_OK) return nullptr;
  const Reply reply(static_cast<redisReply*>(redisCommand(connection.get(), "PING")));
  return reply != nullptr && reply->type == REDIS_REPLY_STATUS ? std::move(connection) : nullptr;
}

absl::Status RedisPeer::Set(absl::Span<const uint64_t> ids, absl::string_view value) {
  redisContext* const connection = connections_[0].get();
  for (size_t begin = 0; begin < ids.size(); begin += kIdsPerCommand) {
    CommandWords command;
    command.Add("MSET");
    for (const uint64_t& id : ids.subspan(begin, kIdsPerCommand)) {
      command.Add(AsKey(id));
      command.Add(value);
    }
    if (!command.AppendTo(connection)) return Error(*connection);
  }
  for (size_t begin = 0; begin < ids.size(); begin += kIdsPerCommand) {
    const Reply reply = NextReply(connection);
    if (reply == nullptr || reply->type != REDIS_REPLY_STATUS) return Error(*connection);
  }
  return absl::OkStatus();
}

absl::Status RedisPeer::Get(absl::Span<const uint64_t> ids, size_t value_bytes, absl::Span<char> values, int at) {
  redisContext* const connection = connections_[at].get();
  for (size_t begin = 0; begin < ids.size(); begin += kIdsPerCommand) {
    CommandWords command;
    command.Add("MGET");
    for (const uint64_t& id : ids.subspan(begin, kIdsPerCommand)) command.Add(AsKey(id));
    if (!command.AppendTo(connection)) return Error(*connection);
  }
  char* value = values.data();
  for (size_t begin = 0; begin < ids.size(); begin += kIdsPerCommand) {
    const Reply reply = NextReply(connection);
    if (reply == nullptr || reply->type != REDIS_REPLY_ARRAY) return Error(*connection);
    for (size_t i = 0; i < reply->elements; ++i, value += value_bytes) {
      const redisReply& element = *reply->element[i];
      if (element.type != REDIS_REPLY_STRING || element.len != value_bytes) {
        return absl::NotFoundError(
            absl::StrCat("Redis has no value of ", value_bytes, " bytes for id ", ids[begin + i]));
      }
      std::memcpy(value, element.str, value_bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status RedisPeer::Error(const redisContext& connection) const {
  return absl::UnavailableError(
      absl::StrCat("Redis: ", connection.err != 0 ? connection.errstr : "unexpected reply", program_.LastWords()));
}

}  // namespace ballast
