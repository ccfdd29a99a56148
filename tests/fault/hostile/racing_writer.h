// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/shared_memory/shared_region.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"

namespace ballast {

// Owns a client on the server's machine that changes requests in shared memory while the server reads them.
// Thread safety: confined to one thread.
class RacingWriter {
 public:
  // Shares memory with the server. Returns the server's errors, and those of SharedRegion::Open.
  static absl::StatusOr<std::unique_ptr<RacingWriter>> Open(const std::shared_ptr<grpc::Channel>& channel,
                                                            const std::string& job);
  ~RacingWriter();

  // Which bytes of a request change: whole words from `first` on, to patterns that are no number, index or length,
  // and back; or any single bits.
  enum class Change { kWords, kBits };

  // Calls a method such as "ParameterService/Push" with `request` in shared memory. Its bytes from `first` on change
  // until the server has responded.
  grpc::Status Call(const std::string& method, const std::string& request, size_t first, Change change,
                    std::mt19937_64& random);
  // Same, but the call itself is made in shared memory, too.
  grpc::Status CallThere(const std::string& method, const std::string& request, size_t first, Change change,
                         std::mt19937_64& random);

 private:
  // Writes the request into the slot; false if it does not fit.
  bool Fill(const std::string& request);
  // Changes bytes until `over` returns true.
  void Race(const std::string& request, size_t first, Change change, std::mt19937_64& random,
            absl::FunctionRef<bool()> over);

  RacingWriter(const std::shared_ptr<grpc::Channel>& channel) : channel_(channel), stub_(channel) {}

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  // The call that keeps the memory shared.
  grpc::ClientContext sharing_;
  std::unique_ptr<v1::ParameterService::Stub> parameters_;
  std::unique_ptr<grpc::ClientReader<v1::ShareMemoryResponse>> stream_;
  std::shared_ptr<SharedRegion> region_;
};

// One encoding of gradients, and its payload of `elements` ones.
struct EncodedGradient {
  v1::Encoding encoding;
  std::string payload;
};
std::vector<EncodedGradient> EncodedOnes(size_t elements);

// A push of one slice. Its payload begins at byte `payload_offset`.
struct RacedPush {
  std::string request;
  size_t payload_offset = 0;
};
RacedPush MakePush(const v1::PushHeader& header, uint32_t tensor_id, const EncodedGradient& gradient);

}  // namespace ballast
