// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/host_agent.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/command/command.h"
#include "cli/hosts/guarded_directory.h"
#include "common/program/core_count.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using internal::v1::AgentReply;
using internal::v1::AgentRequest;

// Interval between looks for files that the processes wrote.
constexpr absl::Duration kLookInterval = absl::Milliseconds(500);
constexpr size_t kMaxUnsent = 16 << 20;
// Exit status of a process that could not be started, as a shell reports it.
constexpr int kExitNotStarted = 127;

}  // namespace

absl::Status HostAgent::Run(int in, int out) {
  signal(SIGPIPE, SIG_IGN);
  for (int descriptor : {in, out}) fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  const absl::StatusOr<std::unique_ptr<GuardedDirectory>> directory = GuardedDirectory::Create();
  if (!directory.ok()) return directory.status();
  // The processes end before their directory is removed.
  HostAgent agent(in, out, (*directory)->path());
  return agent.Serve();
}

absl::Status HostAgent::Serve() {
  absl::StatusOr<std::unique_ptr<Supervisor>> supervisor = Supervisor::Create(this);
  if (!supervisor.ok()) return supervisor.status();
  supervisor_ = *std::move(supervisor);
  supervisor_->AddSource(this);
  channel_.SendText(absl::StrCat("\n", kAgentGreeting, VersionText(), "\n"));
  while (!ended_) supervisor_->Poll(kLookInterval);
  supervisor_.reset();
  return absl::OkStatus();
}

void HostAgent::OnPoll() {
  const bool connected = channel_.Exchange();
  while (const std::optional<std::string> bytes = channel_.NextMessage()) {
    AgentRequest request;
    if (!request.ParseFromString(*bytes)) ended_ = true;
    Handle(request);
    heard_ = absl::Now();
  }
  if (!connected || absl::Now() > heard_ + kSilence) ended_ = true;
  if (ended_ || (ends_.empty() && absl::Now() < next_look_)) return;
  if (mirror_.SendChanges(channel_)) {
    for (const AgentReply& end : std::exchange(ends_, {})) channel_.Send(end);
    next_look_ = absl::Now() + kLookInterval;
  }
  channel_.Exchange();
}

void HostAgent::Handle(const AgentRequest& request) {
  AgentReply reply;
  switch (request.kind_case()) {
    case AgentRequest::kSetup:
      *reply.mutable_ready() = SetUp(request.setup());
      channel_.Send(reply);
      return;
    case AgentRequest::kFile:
      if (const absl::Status status = mirror_.Put(request.file()); !status.ok()) {
        reply.mutable_ready()->set_error(std::string(status.message()));
        channel_.Send(reply);
      }
      return;
    case AgentRequest::kStart:
      Start(request.start());
      return;
    case AgentRequest::kSignal: {
      const auto found = std::find(processes_.begin(), processes_.end(), request.signal().process());
      if (found == processes_.end()) return;
      supervisor_->Signal(static_cast<int>(found - processes_.begin()), request.signal().signal());
      return;
    }
    case AgentRequest::kBeat:
      reply.mutable_beat();
      channel_.Send(reply);
      return;
    case AgentRequest::KIND_NOT_SET:
      return;
  }
}

AgentReply::Ready HostAgent::SetUp(const AgentRequest::Setup& setup) {
  AgentReply::Ready ready;
  ready.set_cores(CoreCount());
  if (!setup.probe().empty()) {
    const absl::StatusOr<std::string> content = ReadFile(setup.probe());
    ready.set_shares_run_dir(content.ok() && *content == setup.probe_content());
  }
  const std::pair<bool, std::pair<const char*, std::string*>> programs[] = {
      {setup.servers(), {"server", &server_binary_}}, {setup.workers(), {"worker", &worker_binary_}}};
  for (const auto& [wanted, program] : programs) {
    if (!wanted) continue;
    absl::StatusOr<std::string> binary = FindBinary(program.first, OwnPath());
    if (!binary.ok()) {
      ready.set_error(std::string(binary.status().message()));
      return ready;
    }
    *program.second = *std::move(binary);
  }
  for (const std::string& input : setup.inputs()) {
    if (access(input.c_str(), R_OK) == 0) continue;
    ready.set_error(absl::StrCat(input, ": ", std::strerror(errno),
                                 "; want every file that the job reads at the same path as on the launching host"));
    return ready;
  }
  return ready;
}

void HostAgent::Start(const AgentRequest::Start& start) {
  const std::string& own = start.server() ? server_binary_ : worker_binary_;
  std::vector<std::string> argv = {start.program().empty() ? own : start.program()};
  for (const std::string& word : start.flags()) {
    const size_t there = word.find(kRunThere);
    const bool replaces = there == 0 || (there != std::string::npos && word[there - 1] == '=');
    argv.push_back(
        replaces ? absl::StrCat(word.substr(0, there), directory_, word.substr(there + sizeof(kRunThere) - 1)) : word);
  }
  // The launch has created these in its own run directory.
  std::error_code error;
  std::filesystem::create_directories(absl::StrCat(directory_, "/logs"), error);
  if (const auto state = std::find(argv.begin(), argv.end(), "--state_dir"); state < argv.end() - 1) {
    std::filesystem::create_directories(std::filesystem::path(*(state + 1)).parent_path(), error);
  }
  const absl::StatusOr<int> child = supervisor_->Start(argv);
  if (!child.ok()) return Refuse(start.process(), child.status());
  processes_.push_back(start.process());
  AgentReply reply;
  reply.mutable_started()->set_process(start.process());
  reply.mutable_started()->set_id(static_cast<uint64_t>(supervisor_->pid(*child)));
  channel_.Send(reply);
}

void HostAgent::Refuse(uint32_t process, const absl::Status& status) {
  AgentReply reply;
  reply.mutable_output()->set_process(process);
  reply.mutable_output()->set_bytes(absl::StrCat("error: ", status.message(), "\n"));
  channel_.Send(reply);
  reply.mutable_ended()->set_process(process);
  reply.mutable_ended()->set_number(kExitNotStarted);
  channel_.Send(reply);
}

void HostAgent::OnOutput(int child, absl::string_view bytes) {
  AgentReply reply;
  reply.mutable_output()->set_process(processes_[child]);
  reply.mutable_output()->set_bytes(std::string(bytes));
  channel_.Send(reply);
  // Until the launch reads again; the processes do not wait for their logs to be read.
  if (!channel_.Flush(kMaxUnsent, static_cast<int>(absl::ToInt64Milliseconds(kSilence)))) ended_ = true;
}

void HostAgent::OnEnd(int child, const ExitStatus& status) {
  AgentReply reply;
  reply.mutable_ended()->set_process(processes_[child]);
  reply.mutable_ended()->set_signaled(status.signaled);
  reply.mutable_ended()->set_number(status.number);
  ends_.push_back(std::move(reply));
}

// `ballast host-agent`: what `ballast launch --hosts` runs on another host. Ends with its input.
CommandResult HostAgentCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  if (!args.empty()) {
    out << "usage: ballast host-agent\n\nUsed by ballast launch --hosts, which runs it on each other host. Starts a "
           "job's servers and workers there,\nand ends them when its input ends.\n";
    return args.size() == 1 && args[0] == "--help" ? kExitSuccess : kExitBadInput;
  }
  const absl::Status status = HostAgent::Run(STDIN_FILENO, STDOUT_FILENO);
  return status.ok() ? CommandResult(kExitSuccess) : Fail(err, status, kExitFailure);
}

}  // namespace ballast
