// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"
#include "ballast/v1/tensor.pb.h"
#include "client/elements/arrived_elements.h"
#include "client/elements/element_copier.h"
#include "client/elements/encoded_elements.h"
#include "common/rpc/credentials.h"
#include "common/tensors/shard_map.h"
#include "common/trace/call_timeline.h"

namespace ballast {

// Size: one flat struct, because a caller sets only a few fields, by name.
struct ClientOptions {
  // Set either the coordinator's address (host:port) or the addresses of the shards, by rank.
  std::string coordinator;
  std::vector<std::string> shards;
  // Certificates and token, from Credentials::Load; shared by all clients of a process. The default suits servers on
  // this machine that require none.
  Credentials credentials;

  // The job's configuration, as in DeclareTensorsRequest. The first declaration is binding for all clients. If the
  // durability is STANDBY and there is a coordinator, the client follows shards to new addresses.
  std::string job;
  v1::ConsistencyPolicy policy;
  uint32_t workers = 1;
  v1::Durability durability;

  // Identity of the pusher. No two clients may push as the same worker and incarnation, not even one after the other: a
  // shard takes the second client's pushes for retries of the first's, and does not apply them.
  uint32_t worker = 0;
  // 0: the time of Connect, in microseconds since 1970, so that a restarted process gets a new one.
  uint64_t incarnation = 0;

  // Timeout for Connect to reach the coordinator or all shards.
  absl::Duration connect_timeout = absl::Seconds(20);
  // Timeout for the response to one attempt of a call, not counting the server's wait for other workers.
  absl::Duration rpc_timeout = absl::Seconds(10);
  // A call with a transient failure is retried until this long after its first failure.
  absl::Duration retry_timeout = absl::Seconds(30);
  // Timeout for a pull to wait for other workers, 1 ms to 600 s.
  absl::Duration wait_timeout = absl::Seconds(60);
  // Timeout for all servers to join before tensors are placed.
  absl::Duration gather_timeout = absl::Seconds(60);

  // Encoding of gradients and values in transit.
  v1::Codec codec;

  // Connections per shard, and messages in flight per shard, counted separately for those that may wait there for other
  // workers (pulls and push-pulls of tensors) and for all others. The defaults saturate the loopback; see
  // docs/results/README.md.
  uint32_t channels_per_shard = 2;
  uint32_t messages_in_flight = 8;
  // Sends large messages to a shard on the same machine through shared memory, if the shard has room for it.
  bool shared_memory = true;
  // Sends messages to a shard on another machine on a data stream, if one can be opened; otherwise each is a gRPC call.
  bool data_streams = true;
  // Prepares the memory that a server shares for another use, such as a GPU's copies; see PinMemory. May be empty.
  std::function<std::shared_ptr<void>(absl::Span<char>)> pin_memory;

  // Records when each response begins to arrive, for AnswerTimes; costs one more callback per message.
  bool watch_answers = false;

  // Traces the messages to shards, each attempt as a call; outlives the client. Null: messages name no trace.
  CallTracer* tracer = nullptr;
};

// Returns the options of a worker's client that follow from its job and from the response to its Join. Waits are at
// least three times a member's time to live, so that a lost member is detected before a wait for it times out; retries
// last as long as a lost server may take to return.
ClientOptions OptionsForWorker(const v1::Job& job, const v1::JoinResponse& joined);

// Returns OK, or INVALID_ARGUMENT with each field that is out of range, its value and the range.
absl::Status CheckOptions(const ClientOptions& options);

// Arrival times of a call's responses, one for each of its messages.
struct AnswerTimes {
  // When the first and the last response began to arrive; when they ended, if responses are not watched.
  absl::Time first = absl::InfiniteFuture();
  absl::Time last = absl::InfinitePast();
  // When the last response was decoded.
  absl::Time end = absl::InfinitePast();
};

struct PushResult {
  // Slices updated at once; buffered until the step's other gradients arrive; dropped because their step was over.
  uint64_t applied = 0;
  uint64_t buffered = 0;
  uint64_t dropped = 0;
  // Maximum over the applied slices.
  uint64_t max_staleness = 0;
  float learning_rate = 0;
  // The shard had already accepted an earlier attempt, whose response was lost; the push was still applied only once.
  bool duplicate = false;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint32_t retries = 0;
  AnswerTimes answers;
};

struct PullResult {
  uint64_t bytes_received = 0;
  uint32_t retries = 0;
  AnswerTimes answers;
};

// The gradient or the values of a whole tensor in the caller's memory, row-major: as floats, or encoded by the caller
// if the client's codec is bf16 or fp16. The memory belongs to the client from the call until its future is ready.
struct TensorGradient {
  uint32_t tensor_id = 0;
  absl::Span<const float> values;
  EncodedElements<const char> encoded;
  // If set, the client fills `values` itself, or does without it. Only for codec fp32.
  ElementCopier* copier = nullptr;
};
struct TensorValues {
  uint32_t tensor_id = 0;
  absl::Span<float> values;
  EncodedElements<char> encoded;
  // If set, it gets all values of a call that succeeds; the content of `values` is then undefined.
  ElementCopier* copier = nullptr;
  // If set, it gets each part of `values` that is in place, while the call may wait for others.
  std::shared_ptr<ArrivedElements> arrived;
};

// Checks that a tensor is given once, with all its elements, as floats or encoded with `want`, the client's codec.
// Errors call it `what`, such as "gradient".
absl::Status CheckMemory(const char* what, const PlacedTensor& placed, const TensorGradient& got, v1::Encoding want);
absl::Status CheckMemory(const char* what, const PlacedTensor& placed, const TensorValues& got, v1::Encoding want);

// The initial values of a whole tensor in the caller's memory, row-major; the memory belongs to the client until the
// call's future is ready.
struct FirstValues {
  uint32_t tensor_id = 0;
  absl::Span<const float> values;
};

struct SetResult {
  // Slices set by this call, and slices that already had these values.
  uint64_t set = 0;
  uint64_t unchanged = 0;
};

}  // namespace ballast
