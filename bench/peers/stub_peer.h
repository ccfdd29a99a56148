// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ballast {

// The peer that transfers are held against: the same service as an ordinary user writes it, with the generated stub,
// the generated message types and one message for the whole tensor, in a server that copies the bytes and does no more.

// The server's process: says where it listens in `address_file`, then serves. Returns only on an error.
absl::Status ServeStub(const std::string& address_file);

// A generated stub on a channel of its own. Each call blocks for at most 60 s and makes one message each way.
// Thread safety: one thread at a time.
class StubClient {
 public:
  explicit StubClient(const std::string& address);
  ~StubClient();

  // The first `floats` of `values` go to the server; come from it; both.
  absl::Status Push(const std::vector<float>& values, uint64_t floats);
  absl::Status Pull(std::vector<float>& values, uint64_t floats);
  absl::Status PushPull(std::vector<float>& values, uint64_t floats);
  // A Pull that names the job and no slices. Any server of the service answers it with an empty message.
  absl::Status Empty(const std::string& job);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ballast
