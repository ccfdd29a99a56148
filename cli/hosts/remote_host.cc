// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/remote_host.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/command/command.h"
#include "cli/hosts/run_mirror.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using internal::v1::AgentReply;
using internal::v1::AgentRequest;

constexpr size_t kFilePartBytes = 1 << 20;
// Kept of what the remote shell prints.
constexpr size_t kMaxErrors = 4096;
constexpr size_t kErrorLines = 4;

}  // namespace

absl::Status RemoteHost::Error(absl::StatusCode code, absl::string_view text) const {
  return absl::Status(code, absl::StrCat("host ", options_.host.address, ": ", text));
}

void RemoteHost::Connect() {
  state_ = State::kConnecting;
  error_ = absl::OkStatus();
  greeted_ = hung_up_ = false;
  errors_.clear();
  sent_.clear();
  channel_.reset();
  deadline_ = absl::Now() + kConnect;
  next_beat_ = absl::Now() + kBeatInterval;
  // execv does not search PATH.
  std::vector<std::string> argv = {"/usr/bin/env", "--"};
  const std::vector<std::string> words = AgentCommand(options_.shell, options_.host.login);
  argv.insert(argv.end(), words.begin(), words.end());
  absl::StatusOr<Process> shell = Process::StartConnected(argv);
  if (!shell.ok()) return Lose(Error(absl::StatusCode::kInvalidArgument, shell.status().message()));
  shell_ = std::make_unique<Process>(*std::move(shell));
  channel_ = std::make_unique<FrameChannel>(shell_->output(), shell_->input());
  AgentRequest request;
  *request.mutable_setup() = options_.setup;
  channel_->Send(request);
  SendFiles(options_.results);
  SendFiles(options_.files);
}

void RemoteHost::SendFiles(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(options_.run_dir, "/", name);
    struct stat info;
    if (stat(path.c_str(), &info) != 0) continue;
    std::string version = absl::StrCat(info.st_ino, " ", info.st_ctim.tv_sec, " ", info.st_ctim.tv_nsec);
    if (sent_[name] == version) continue;
    const absl::StatusOr<std::string> content = ReadFile(path);
    if (!content.ok()) continue;
    sent_[name] = std::move(version);
    SendFile(name, *content);
  }
}

void RemoteHost::SendFile(const std::string& name, const std::string& content) {
  absl::string_view rest = content;
  AgentRequest request;
  AgentRequest::File& file = *request.mutable_file();
  file.set_path(name);
  do {
    file.set_content(std::string(rest.substr(0, kFilePartBytes)));
    rest.remove_prefix(file.content().size());
    channel_->Send(request);
    file.set_append(true);
  } while (!rest.empty());
}

std::string RemoteHost::OnHost(const std::string& word) const {
  // A flag, or a variable and its value.
  const size_t equals = absl::StartsWith(word, "/") ? std::string::npos : word.find('=');
  const std::string name = equals == std::string::npos ? "" : word.substr(0, equals + 1);
  absl::string_view rest = absl::string_view(word).substr(name.size());
  if (!absl::ConsumePrefix(&rest, options_.run_dir) || !(rest.empty() || rest[0] == '/')) return word;
  // Durable state outlives the connection.
  if (absl::StartsWith(rest, "/state/") || absl::StartsWith(rest, "/checkpoints")) return word;
  return absl::StrCat(name, kRunThere, rest);
}

void RemoteHost::StartOwn(int process, bool server, const std::vector<std::string>& flags) {
  AgentRequest::Start start;
  start.set_process(process);
  start.set_server(server);
  Start(std::move(start), flags);
}

void RemoteHost::Start(int process, const std::string& program, const std::vector<std::string>& words) {
  AgentRequest::Start start;
  start.set_process(process);
  start.set_program(program);
  Start(std::move(start), words);
}

void RemoteHost::Start(AgentRequest::Start start, const std::vector<std::string>& words) {
  running_.insert(start.process());
  if (state_ == State::kLost) Connect();
  // If the connection failed at once, the next poll ends the process as lost.
  if (state_ == State::kLost) return;
  for (const std::string& word : words) start.add_flags(OnHost(word));
  AgentRequest request;
  *request.mutable_start() = std::move(start);
  channel_->Send(request);
}

void RemoteHost::Signal(int process, int signal) {
  if (state_ == State::kLost || running_.count(process) == 0) return;
  AgentRequest request;
  request.mutable_signal()->set_process(process);
  request.mutable_signal()->set_signal(signal);
  channel_->Send(request);
}

uint64_t RemoteHost::id(int process) const {
  const auto found = ids_.find(process);
  return found == ids_.end() ? 0 : found->second;
}

void RemoteHost::HangUp() {
  if (channel_ != nullptr) channel_->Exchange();
  hung_up_ = true;
  channel_.reset();
  if (shell_ == nullptr) return;
  shell_->CloseInput();
  // It may still try to connect.
  if (!greeted_) shell_->Signal(SIGKILL);
}

void RemoteHost::AddDescriptors(std::vector<pollfd>& waiting) const {
  if (channel_ != nullptr) channel_->AddDescriptors(waiting);
  if (shell_ != nullptr && shell_->errors() >= 0) waiting.push_back({shell_->errors(), POLLIN, 0});
}

void RemoteHost::OnPoll() {
  Serve();
  if (state_ != State::kLost) return;
  const std::string line = absl::StrCat("error: ", error_.message(), "\n");
  for (int process : std::exchange(running_, {})) {
    listener_->OnOutput(process, line);
    listener_->OnEnd(process, {.signaled = true, .number = SIGKILL, .lost = true});
  }
}

void RemoteHost::Serve() {
  if (shell_ == nullptr) return;
  ReadErrors();
  if (hung_up_ || state_ == State::kLost) {
    // Unread output must not keep the agent from ending.
    char buffer[4096];
    while (shell_->output() >= 0 && read(shell_->output(), buffer, sizeof(buffer)) > 0) {
    }
    shell_->Reap();
    return;
  }
  const bool connected = channel_->Exchange();
  ReadMessages();
  if (state_ == State::kLost) return;
  // A process that ssh leaves behind may keep the pipes open.
  const bool ended = shell_->Reap();
  if (ended || (!connected && absl::Now() > deadline_)) {
    // Its last words may have arrived before its end was noticed.
    ReadErrors();
    return LoseShell();
  }
  if (absl::Now() > deadline_) {
    const absl::Duration timeout = state_ == State::kReady ? kSilence : kConnect;
    const std::string words = errors_.empty() ? "" : absl::StrCat(": ", ShellError());
    return Lose(Error(absl::StatusCode::kUnavailable,
                      absl::StrCat("no response within ", absl::FormatDuration(timeout), words)));
  }
  if (absl::Now() < next_beat_) return;
  next_beat_ = absl::Now() + kBeatInterval;
  AgentRequest request;
  request.mutable_beat();
  channel_->Send(request);
  SendFiles(options_.files);
}

void RemoteHost::ReadMessages() {
  if (!greeted_) {
    const std::optional<std::string> version = channel_->SkipToLine(kAgentGreeting);
    if (channel_->garbled()) {
      return Lose(Error(absl::StatusCode::kInvalidArgument,
                        absl::StrCat(options_.shell.words[0], " printed more than 1 MiB, and no \"", kAgentGreeting,
                                     "\" in it; want a remote shell that runs a command")));
    }
    if (!version.has_value()) return;
    greeted_ = true;
    if (*version != VersionText()) {
      return Lose(Error(absl::StatusCode::kInvalidArgument,
                        absl::StrCat("got ", *version, ", want ", VersionText(), " as on this machine")));
    }
  }
  while (state_ != State::kLost) {
    const std::optional<std::string> bytes = channel_->NextMessage();
    if (!bytes.has_value() && !channel_->garbled()) return;
    AgentReply reply;
    if (!bytes.has_value() || !reply.ParseFromString(*bytes)) {
      return Lose(Error(absl::StatusCode::kUnavailable, "sent a message that is not one of the agent's"));
    }
    // Ready within its own timeout, and never silent from then on.
    if (state_ == State::kReady || reply.has_ready()) deadline_ = absl::Now() + kSilence;
    Handle(reply);
  }
}

void RemoteHost::LoseShell() {
  const std::optional<ExitStatus>& end = shell_->status();
  // ssh itself fails with 255; any other status is that of the command on the host.
  const bool command_failed = !greeted_ && end.has_value() && !end->signaled && end->number != kExitShell;
  const bool known = !ShellAdvice(errors_, options_.shell, options_.host.login).empty();
  Lose(Error(command_failed || known ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnavailable,
             ShellError()));
}

void RemoteHost::ReadErrors() {
  char buffer[1024];
  while (shell_->errors() >= 0) {
    const ssize_t got = read(shell_->errors(), buffer, sizeof(buffer));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return shell_->CloseErrors();
    errors_.append(buffer, got);
    if (errors_.size() > kMaxErrors) errors_.erase(0, errors_.size() - kMaxErrors);
  }
}

std::string RemoteHost::ShellError() const {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(errors_, '\n')) {
    if (line = absl::StripAsciiWhitespace(line); !line.empty()) lines.emplace_back(line);
  }
  if (lines.size() > kErrorLines) lines.erase(lines.begin(), lines.end() - kErrorLines);
  std::string text = lines.empty() ? absl::StrCat(options_.shell.words[0], " ended without an error message")
                                   : absl::StrJoin(lines, "; ");
  if (const std::string advice = ShellAdvice(errors_, options_.shell, options_.host.login); !advice.empty()) {
    absl::StrAppend(&text, " (", advice, ")");
  }
  return text;
}

void RemoteHost::Lose(absl::Status error) {
  state_ = State::kLost;
  error_ = std::move(error);
  // Its input ends with it, upon which the agent, if it is there, ends too.
  if (shell_ != nullptr) shell_->Signal(SIGKILL);
}

void RemoteHost::Handle(const AgentReply& reply) {
  switch (reply.kind_case()) {
    case AgentReply::kReady:
      if (!reply.ready().error().empty()) {
        return Lose(Error(absl::StatusCode::kInvalidArgument, reply.ready().error()));
      }
      ready_ = reply.ready();
      state_ = State::kReady;
      return;
    case AgentReply::kStarted:
      ids_[reply.started().process()] = reply.started().id();
      return;
    case AgentReply::kOutput:
      if (running_.count(reply.output().process()) == 0) return;
      listener_->OnOutput(reply.output().process(), reply.output().bytes());
      return;
    case AgentReply::kEnded:
      if (running_.erase(reply.ended().process()) == 0) return;
      listener_->OnEnd(reply.ended().process(), {reply.ended().signaled(), reply.ended().number()});
      return;
    case AgentReply::kFile:
      if (const absl::Status status = ReceivePart(options_.run_dir, reply.file()); !status.ok()) {
        Lose(Error(absl::StatusCode::kInvalidArgument, status.message()));
      }
      return;
    case AgentReply::kBeat:
    case AgentReply::KIND_NOT_SET:
      return;
  }
}

}  // namespace ballast
