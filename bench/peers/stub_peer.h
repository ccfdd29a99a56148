// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace ballast {

// A peer of the transfers: the same service as an ordinary user writes it, with the generated stub and message types
// and one message for the whole tensor; the server only copies the bytes.

// The server process: writes its address to `address_file`, then serves. Returns only on an error.
absl::Status ServeStub(const std::string& address_file);

// A generated stub on its own channel. Each call blocks for at most 60 s and sends one message each way. Thread
// safety: one thread at a time.
class StubClient {
 public:
  explicit StubClient(const std::string& address);
  ~StubClient();

  // Sends, receives, or sends and receives the first `floats` of `values`.
  absl::Status Push(absl::Span<const float> values, uint64_t floats);
  absl::Status Pull(std::vector<float>& values, uint64_t floats);
  absl::Status PushPull(std::vector<float>& values, uint64_t floats);
  // A Pull that names the job and no slices. Any server of the service returns an empty message.
  absl::Status Empty(const std::string& job);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ballast
