// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "ballast/internal/v1/host_agent.pb.h"
#include "cli/hosts/frame_channel.h"

namespace ballast {

// Keeps a host's copy of the run directory and the launch's own alike: writes the launch's files into the copy, and
// sends the launch what the host's processes write there. Invariant: a file of the launch is sent back only once it
// has changed, and keys never. Owns the state of each file as of the last look. A file that is renamed into place is
// sent whole; a .jsonl or TensorBoard file that grew is sent from where it ended. Thread safety: none.
class RunMirror {
 public:
  // `path` exists. It is not removed.
  explicit RunMirror(std::string path) : path_(std::move(path)) {}

  // Writes a file of the launch, readable by this user only.
  absl::Status Put(const internal::v1::AgentRequest::File& file);

  // Sends what has changed since, until `channel` holds much. Returns whether everything is sent.
  bool SendChanges(FrameChannel& channel);

 private:
  struct File {
    uint64_t inode = 0;
    int64_t changed_ns = 0;
    uint64_t sent = 0;
    // Its present state was sent to the end.
    bool whole = false;
  };

  static File StateOf(const struct stat& info);
  // Returns false if `channel` is full before the file was sent.
  bool SendFile(const std::string& name, FrameChannel& channel);

  const std::string path_;
  // By path relative to the copy.
  std::map<std::string, File> files_;
};

// Writes into the launch's run directory what a host has sent. INVALID_ARGUMENT if the path leads elsewhere, because a
// host is not trusted with other files.
absl::Status ReceivePart(const std::string& run_dir, const internal::v1::AgentReply::FilePart& part);

// Directory of keys in a run directory.
inline constexpr char kKeyDirectory[] = "security";

}  // namespace ballast
