// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ballast/internal/v1/host_agent.pb.h"
#include "cli/hosts/frame_channel.h"
#include "cli/hosts/run_mirror.h"
#include "cli/hosts/supervisor.h"

namespace ballast {

// Begins the line with which an agent's output starts; the rest of the line is VersionText().
inline constexpr char kAgentGreeting[] = "ballast host-agent: ";

// Stands in a flag for the host's copy of the run directory.
inline constexpr char kRunThere[] = "{run}";

// Interval at which a launch says that it is alive, and the silence after which each side considers the other lost.
inline constexpr absl::Duration kBeatInterval = absl::Seconds(5);
inline constexpr absl::Duration kSilence = absl::Seconds(30);

// Owns the processes of one launch on another host, in a private temporary directory that holds the host's copy of the
// run directory, keys included. Invariant: when the connection to the launch ends, for any reason, the processes are
// killed and the directory is removed. Does not restart anything. Thread safety: confined to the main thread.
class HostAgent : private ProcessListener, private PollSource {
 public:
  // Speaks with the launch through these descriptors, which are made non-blocking. Blocks until the connection ends.
  static absl::Status Run(int in, int out);

 private:
  HostAgent(int in, int out, const std::string& directory)
      : channel_(in, out), directory_(directory), mirror_(directory) {}

  void OnOutput(int child, absl::string_view bytes) override;
  void OnEnd(int child, const ExitStatus& status) override;
  void OnSignal(int) override { ended_ = true; }
  void AddDescriptors(std::vector<pollfd>& waiting) const override { channel_.AddDescriptors(waiting); }
  void OnPoll() override;

  absl::Status Serve();
  void Handle(const internal::v1::AgentRequest& request);
  internal::v1::AgentReply::Ready SetUp(const internal::v1::AgentRequest::Setup& setup);
  void Start(const internal::v1::AgentRequest::Start& start);
  // Ends a process that did not start.
  void Refuse(uint32_t process, const absl::Status& status);

  FrameChannel channel_;
  const std::string directory_;
  RunMirror mirror_;
  std::unique_ptr<Supervisor> supervisor_;
  // By number of the supervisor.
  std::vector<uint32_t> processes_;
  // Ends that the launch learns of once it has the files of the processes.
  std::vector<internal::v1::AgentReply> ends_;
  std::string server_binary_;
  std::string worker_binary_;
  absl::Time heard_ = absl::Now();
  absl::Time next_look_ = absl::InfinitePast();
  bool ended_ = false;
};

}  // namespace ballast
