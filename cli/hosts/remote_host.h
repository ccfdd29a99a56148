// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ballast/internal/v1/host_agent.pb.h"
#include "cli/hosts/frame_channel.h"
#include "cli/hosts/host_agent.h"
#include "cli/hosts/host_list.h"
#include "cli/hosts/remote_shell.h"
#include "cli/hosts/supervisor.h"
#include "common/program/process.h"

namespace ballast {

// Owns the connection to the agent on another host: a remote shell whose input and output carry the messages of
// host_agent.proto. Keeps the host's copy of some files of the run directory up to date, and receives those that the
// processes there write. If the connection breaks or is silent, all processes of the host end as lost; the next Start
// connects again. Does not decide what runs where. Thread safety: confined to the main thread.
class RemoteHost : public PollSource {
 public:
  // Timeout for the host to be ready.
  static constexpr absl::Duration kConnect = absl::Seconds(20);

  struct Options {
    JobHost host;
    RemoteShell shell;
    // The launch's run directory, as an absolute path.
    std::string run_dir;
    internal::v1::AgentRequest::Setup setup;
    // Files that the host gets, relative to the run directory: at each connection, and again when they change.
    std::vector<std::string> files;
    // Files that the host's processes continue, which it gets at each connection if they exist.
    std::vector<std::string> results;
  };
  enum class State { kConnecting, kReady, kLost };

  // `listener` gets the events of the processes, under the numbers given to Start.
  RemoteHost(Options options, ProcessListener* listener) : options_(std::move(options)), listener_(listener) {}

  const JobHost& host() const { return options_.host; }
  bool has_servers() const { return options_.setup.servers(); }
  State state() const { return state_; }
  // Reason for which the host was lost or is not fit; each begins with "host NAME: ". INVALID_ARGUMENT if a retry
  // cannot help, otherwise UNAVAILABLE.
  const absl::Status& error() const { return error_; }
  // Set once it is ready.
  const internal::v1::AgentReply::Ready& ready() const { return ready_; }

  // Starts the remote shell; returns at once.
  void Connect();
  // Starts the server or worker of that host, or a program. Connects first if the host was lost. In a flag, and in the
  // value of a word NAME=VALUE, the run directory of the launch becomes that of the host, except for durable state,
  // which is under the launch's path.
  void StartOwn(int process, bool server, const std::vector<std::string>& flags);
  void Start(int process, const std::string& program, const std::vector<std::string>& words);
  void Signal(int process, int signal);
  // Returns the id that the process has or had on its host; 0 until it has started.
  uint64_t id(int process) const;

  // Ends the connection, upon which the agent ends the processes and removes its directory.
  void HangUp();
  // Returns whether the remote shell has ended: nothing is left on the host.
  bool ended() const { return shell_ == nullptr || shell_->status().has_value(); }

  void AddDescriptors(std::vector<pollfd>& waiting) const override;
  void OnPoll() override;

 private:
  void Serve();
  void ReadMessages();
  void Handle(const internal::v1::AgentReply& reply);
  void ReadErrors();
  // After the end of the remote shell.
  void LoseShell();
  // Returns a text for the end of the remote shell, from its own last lines.
  std::string ShellError() const;
  // The next poll ends the host's processes.
  void Lose(absl::Status error);
  void Start(internal::v1::AgentRequest::Start start, const std::vector<std::string>& words);
  std::string OnHost(const std::string& word) const;
  // Sends those files that have changed since the last time.
  void SendFiles(const std::vector<std::string>& names);
  void SendFile(const std::string& name, const std::string& content);
  absl::Status Error(absl::StatusCode code, absl::string_view text) const;

  const Options options_;
  ProcessListener* const listener_;
  State state_ = State::kLost;
  absl::Status error_;
  internal::v1::AgentReply::Ready ready_;
  std::unique_ptr<Process> shell_;
  std::unique_ptr<FrameChannel> channel_;
  bool greeted_ = false;
  bool hung_up_ = false;
  // The end of the remote shell's standard error.
  std::string errors_;
  std::set<int> running_;
  std::map<int, uint64_t> ids_;
  // Inode and time of change of each file that was sent.
  std::map<std::string, std::string> sent_;
  absl::Time deadline_;
  absl::Time next_beat_;
};

}  // namespace ballast
