// SPDX-License-Identifier: Apache-2.0
#include "server/parameter_service.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/tensor_spec.h"
#include "common/version.h"
#include "server/call.h"

namespace ballast {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and used in place");

// What a message may carry besides its headers.
constexpr uint64_t kMaxPayload = 4 << 20;

PushTicket DecodeHeader(const v1::PushHeader& header) {
  return {header.worker(), header.incarnation(), header.sequence(), header.step(), header.examples()};
}

template <typename Gradients>
absl::StatusOr<std::vector<GradientView>> DecodeGradients(const Gradients& gradients) {
  std::vector<GradientView> views;
  views.reserve(gradients.size());
  for (const v1::SliceGradient& gradient : gradients) {
    if (gradient.encoding() != v1::ENCODING_UNSPECIFIED && gradient.encoding() != v1::ENCODING_FP32) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", gradient.tensor_id(), " slice ", gradient.slice_index(),
                                                     ": encoding ", gradient.encoding(),
                                                     " is unknown, this server takes ENCODING_FP32"));
    }
    const std::string& payload = gradient.payload();
    if (payload.size() % sizeof(float) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", gradient.tensor_id(), " slice ", gradient.slice_index(),
                                                     ": payload has ", payload.size(), " bytes, want a multiple of 4"));
    }
    views.push_back(
        {{gradient.tensor_id(), gradient.slice_index()}, gradient.version(), Gradient({absl::string_view(payload)})});
  }
  return views;
}

void Encode(const PushOutcome& outcome, v1::PushOutcome* to) {
  to->set_applied(outcome.applied);
  to->set_kept(outcome.kept);
  to->set_dropped(outcome.dropped);
  to->set_max_staleness(outcome.max_staleness);
  to->set_learning_rate(outcome.learning_rate);
  to->set_duplicate(outcome.duplicate);
}

// Copies the slices' values into `values`, up to what one message may carry.
template <typename Values>
absl::Status EncodeValues(ParameterShard& shard, absl::Span<const SliceKey> keys, std::optional<uint32_t> worker,
                          Values* values) {
  uint64_t bytes = 0;
  for (SliceKey key : keys) {
    absl::StatusOr<Slice::Snapshot> snapshot = shard.Pull(key, worker);
    if (!snapshot.ok()) return snapshot.status();
    const absl::Span<const float> elements = snapshot->values.values();
    bytes += elements.size() * sizeof(float);
    if (bytes > kMaxPayload) {
      return absl::InvalidArgumentError(
          absl::StrCat("the slices asked for have more than ", kMaxPayload, " bytes; ask for fewer in one message"));
    }
    v1::SliceValue* value = values->Add();
    value->set_tensor_id(key.tensor_id);
    value->set_slice_index(key.slice_index);
    value->set_encoding(v1::ENCODING_FP32);
    value->set_version(snapshot->version);
    value->mutable_payload()->assign(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(float));
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* ParameterServiceAdapter::DeclareTensors(grpc::CallbackServerContext* context,
                                                                  const v1::DeclareTensorsRequest* request,
                                                                  v1::DeclareTensorsResponse* response) {
  if (request->protocol_version() != 0 && request->protocol_version() != kProtocolVersion) {
    return Answer(context, absl::FailedPreconditionError(absl::StrCat("shard ", rank_, ": got protocol version ",
                                                                      request->protocol_version(), ", want ",
                                                                      kProtocolVersion, " (ballast ", kVersion, ")")));
  }
  std::vector<OwnedTensor> tensors;
  tensors.reserve(request->tensors_size());
  for (const v1::TensorDeclaration& declaration : request->tensors()) {
    tensors.push_back({declaration.spec(), {declaration.slices().begin(), declaration.slices().end()}});
  }
  auto owned = shard_->Declare({request->job(), request->policy(), request->workers()}, std::move(tensors));
  if (!owned.ok()) return Answer(context, owned.status());
  for (const OwnedTensor& tensor : *owned) {
    v1::DeclareTensorsResponse::Owned* to = response->add_tensors();
    to->set_tensor_id(tensor.spec.id());
    to->mutable_slices()->Add(tensor.slices.begin(), tensor.slices.end());
  }
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::Push(grpc::CallbackServerContext* context,
                                                        const v1::PushRequest* request, v1::PushResponse* response) {
  auto gradients = DecodeGradients(request->gradients());
  if (!gradients.ok()) return Answer(context, gradients.status());
  auto outcome = shard_->Push(request->header().job(), DecodeHeader(request->header()), *gradients);
  if (!outcome.ok()) return Answer(context, outcome.status());
  Encode(*outcome, response->mutable_outcome());
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::Pull(grpc::CallbackServerContext* context,
                                                        const v1::PullRequest* request, v1::PullResponse* response) {
  absl::StatusOr<absl::Duration> wait = DecodeWait(request->wait_ms());
  if (!wait.ok()) return Answer(context, wait.status());
  std::vector<SliceKey> keys;
  keys.reserve(request->slices_size());
  for (const v1::SliceRef& slice : request->slices()) keys.push_back({slice.tensor_id(), slice.slice_index()});
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::optional<uint32_t> worker;
  if (request->has_worker()) worker = request->worker();
  shard_->AwaitPull(request->job(), {request->step(), worker}, keys, *wait, [=, this](absl::Status status) {
    if (status.ok()) status = EncodeValues(*shard_, keys, worker, response->mutable_values());
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::PushPull(grpc::CallbackServerContext* context,
                                                            const v1::PushPullRequest* request,
                                                            v1::PushPullResponse* response) {
  absl::StatusOr<absl::Duration> wait = DecodeWait(request->wait_ms());
  if (!wait.ok()) return Answer(context, wait.status());
  auto gradients = DecodeGradients(request->gradients());
  if (!gradients.ok()) return Answer(context, gradients.status());
  auto outcome = shard_->Push(request->header().job(), DecodeHeader(request->header()), *gradients);
  if (!outcome.ok()) return Answer(context, outcome.status());
  Encode(*outcome, response->mutable_outcome());
  std::vector<SliceKey> keys;
  keys.reserve(gradients->size());
  for (const GradientView& gradient : *gradients) keys.push_back(gradient.key);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const uint32_t worker = request->header().worker();
  shard_->AwaitPull(request->header().job(), {request->header().step() + 1, worker}, keys, *wait,
                    [=, this](absl::Status status) {
                      if (status.ok()) status = EncodeValues(*shard_, keys, worker, response->mutable_values());
                      reactor->Finish(ToGrpcStatus(status));
                    });
  return reactor;
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::GetStatus(grpc::CallbackServerContext* context,
                                                             const v1::GetStatusRequest*,
                                                             v1::GetStatusResponse* response) {
  const ShardStatus status = shard_->status();
  response->set_shard(rank_);
  response->set_job(status.job.name);
  response->set_policy(std::string(PolicyMode(status.job.policy)));
  response->set_workers(status.job.workers);
  response->set_tensors(status.tensors);
  response->set_slices(status.slices);
  response->set_state_bytes(status.state_bytes);
  response->set_pushes(status.pushes);
  response->set_pulls(status.pulls);
  response->set_updates(status.updates);
  response->set_duplicates(status.duplicates);
  response->set_dropped(status.dropped);
  response->set_waiting(status.waiting);
  response->set_max_staleness(status.max_staleness);
  response->set_uptime_seconds(status.uptime_seconds);
  response->set_version(kVersion);
  response->set_draining(status.draining);
  return Answer(context, absl::OkStatus());
}

}  // namespace ballast
