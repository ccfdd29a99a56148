// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "ballast/v1/parameter_service.grpc.pb.h"
#include "server/byte_budget.h"
#include "server/parameter_shard.h"

namespace ballast {

// The generated service with the three calls of the data plane left as raw bytes.
using RawParameterService = v1::ParameterService::WithCallbackMethod_DeclareTensors<
    v1::ParameterService::WithRawCallbackMethod_Push<v1::ParameterService::WithRawCallbackMethod_Pull<
        v1::ParameterService::WithRawCallbackMethod_PushPull<v1::ParameterService::WithCallbackMethod_Pause<
            v1::ParameterService::WithCallbackMethod_GetStatus<v1::ParameterService::Service>>>>>>;

// Decodes calls of ballast.v1.ParameterService, calls the shard, encodes its answers. Gradients are used where they
// were received, values are sent from where the shard holds them. Holds nothing but the budget of bytes in flight.
// Thread safety: all methods may be called from any thread.
class ParameterServiceAdapter : public RawParameterService {
 public:
  // `shard` must outlive the server that this is registered with.
  ParameterServiceAdapter(uint32_t rank, ParameterShard* shard, uint64_t max_bytes_in_flight)
      : rank_(rank), shard_(shard), budget_(max_bytes_in_flight) {}

  grpc::ServerUnaryReactor* DeclareTensors(grpc::CallbackServerContext* context,
                                           const v1::DeclareTensorsRequest* request,
                                           v1::DeclareTensorsResponse* response) override;
  grpc::ServerUnaryReactor* Push(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Pull(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* PushPull(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context, const v1::PauseRequest* request,
                                  v1::PauseResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;

 private:
  struct AnswerTerms {
    uint32_t wait_ms = 0;
    v1::Encoding encoding = v1::ENCODING_UNSPECIFIED;
  };

  // Waits as `pull` says, then ends the call with the slices' values.
  template <typename Call, typename Response>
  void AnswerWithValues(Call* call, const std::string& job, const PullTerms& pull, std::vector<SliceKey> keys,
                        const AnswerTerms& terms, const Response& envelope, grpc::ByteBuffer* response);
  absl::Status OnShard(const absl::Status& status) const;

  const uint32_t rank_;
  ParameterShard* const shard_;
  ByteBudget budget_;
  std::atomic<uint64_t> push_bytes_{0}, pull_bytes_{0};
};

}  // namespace ballast
