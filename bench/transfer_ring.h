// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/contestant.h"
#include "bench/peers/child_server.h"
#include "bench/peers/stub_peer.h"
#include "client/client.h"

namespace ballast {

// Names of the contestants that a transfer of one size compares.
inline constexpr char kPush[] = "push";
inline constexpr char kPull[] = "pull";
inline constexpr char kPushPull[] = "push-pull";
inline constexpr char kTcpPush[] = "push-tcp";
inline constexpr char kTcpPull[] = "pull-tcp";
inline constexpr char kTcpPushPull[] = "push-pull-tcp";
inline constexpr char kTcpStream[] = "bare TCP stream";
inline constexpr char kStubPush[] = "plain stub push";
inline constexpr char kStubPull[] = "plain stub pull";
inline constexpr char kStubPushPull[] = "plain stub push-pull";
inline constexpr char kEmptyCall[] = "empty call";

// Owns the processes and connections that transfers are measured with: our servers, with a tensor of each size under
// async SGD, a client for each worker, and the peers. Thread safety: confined to the main thread.
class TransferRing {
 public:
  static absl::StatusOr<std::unique_ptr<TransferRing>> Open(const std::vector<uint64_t>& sizes, int servers,
                                                            int workers);
  TransferRing(const TransferRing&) = delete;

  // Contestants for the tensor of sizes[index]. They share the ring's memory, so use one set at a time.
  std::vector<Contestant> Contestants(size_t index);

  // Memory of all our servers together: peak resident bytes, and the promised limit: state, budget of bytes in
  // flight, and 64 MiB per server.
  struct Memory {
    uint64_t peak = 0;
    uint64_t allowed = 0;
  };
  absl::StatusOr<Memory> ServerMemory();

 private:
  // State of one worker.
  struct Worker {
    // `client` uses shared memory, `tcp_client` TCP as between machines; each is its own worker of the job.
    std::unique_ptr<Client> client;
    std::unique_ptr<Client> tcp_client;
    std::unique_ptr<StubClient> stub;
    std::vector<float> gradient;
    std::vector<float> values;
    uint64_t step = 0;
    uint64_t tcp_step = 0;
  };

  TransferRing(std::vector<uint64_t> sizes, ScratchFolder folder)
      : sizes_(std::move(sizes)), folder_(std::move(folder)) {}
  absl::Status StartProcesses(int servers, int workers);
  absl::Status Connect(int workers);
  absl::StatusOr<std::unique_ptr<Client>> Join(const std::vector<v1::TensorSpec>& specs, uint32_t worker,
                                               bool shared_memory) const;

  const std::vector<uint64_t> sizes_;
  const ScratchFolder folder_;
  std::vector<ChildServer> servers_;
  std::vector<ChildServer> tcp_sink_;
  std::vector<ChildServer> stub_server_;
  std::vector<Worker> workers_;
  std::unique_ptr<StubClient> empty_;
};

}  // namespace ballast
