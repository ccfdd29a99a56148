// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "ballast/v1/tensor.pb.h"
#include "client/encoded_elements.h"
#include "client/future.h"
#include "client/message_packer.h"
#include "common/rpc/credentials.h"
#include "common/tensors/shard_map.h"

namespace ballast {

class CoordinatorLink;
class ErrorFeedback;
class ShardChannel;
struct ShardMessage;
struct ShardReply;

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

  // Connections per shard, and messages in flight per shard, counted separately for pushes and for pulls. The defaults
  // saturate the loopback; see docs/results/README.md.
  uint32_t channels_per_shard = 2;
  uint32_t messages_in_flight = 8;
  // Sends large messages to a shard on the same machine through shared memory, if the shard has room for it.
  bool shared_memory = true;

  // Records when each response begins to arrive, for AnswerTimes; costs one more callback per message.
  bool watch_answers = false;
};

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
};
struct TensorValues {
  uint32_t tensor_id = 0;
  absl::Span<float> values;
  EncodedElements<char> encoded;
};

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

// Owns the connections to all shards of a job; routes slices to their owners and remembers their versions. If a shard
// moves to another address, messages in flight are sent again there, and still applied once. The client retries calls
// itself, which is safe: a push is applied once. Every future is ready within the options' timeouts. Errors name the
// shard, its address and the call. After INVALID_ARGUMENT the job is unchanged; after any other failure of a push, a
// part of it may have been applied.
// Calls whose futures are not awaited may be reordered. All workers should push-pull tensors in the same order.
// Thread safety: all methods may be called from any thread. Destroying the client cancels all calls.
class Client {
 public:
  // Connects to the coordinator or to every shard; blocks. UNAVAILABLE and DEADLINE_EXCEEDED name the address and the
  // time spent. INVALID_ARGUMENT if an option is out of range or an address on another machine lacks TLS;
  // UNAUTHENTICATED or PERMISSION_DENIED if the token is not accepted.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  ~Client();

  // Places the tensors and creates them on their shards; blocks. Repeating a declaration is OK; a different one is
  // FAILED_PRECONDITION. Tensors that others declared through the coordinator before Connect need no declaration.
  absl::Status Declare(absl::Span<const v1::TensorSpec> specs);

  // Sets the initial values of tensors, once per job. Pulls of a tensor whose initializer is Provided wait for it, even
  // at step 0, so one client sets and all others pull. Setting the same values again is OK at any time. Other values,
  // or a tensor that has received a push, are FAILED_PRECONDITION; some of the slices may then have been set.
  Future<SetResult> SetValues(absl::Span<const FirstValues> tensors);

  // Pushes gradients, which are means over `examples` examples, computed after the worker had finished `step` steps.
  // With examples = 0 the worker completes the step without contributing; gradients may then be empty.
  // `schedule_position` is the position in the job's data where the step began, as in PushHeader.
  Future<PushResult> Push(uint64_t step, uint32_t examples, absl::Span<const TensorGradient> gradients,
                          std::optional<double> schedule_position = std::nullopt);

  // Reads values; under policy sync, values that include the update of step - 1.
  Future<PullResult> Pull(uint64_t step, absl::Span<const TensorValues> values);

  // Pushes at `step` and pulls at `step` + 1 in one round trip. Both lists name the same tensors in the same order.
  Future<PushResult> PushPull(uint64_t step, uint32_t examples, absl::Span<const TensorGradient> gradients,
                              absl::Span<const TensorValues> values,
                              std::optional<double> schedule_position = std::nullopt);

  // Reports that this worker stops pushing for now, so that others do not wait for it until its next push; blocks. Call
  // it after the futures of all pushes are ready.
  absl::Status Pause();

  // Returns each shard's status, by rank; blocks.
  absl::StatusOr<std::vector<v1::GetStatusResponse>> GetStatus();

  ShardMap shard_map() const;

  // Returns the oldest and the newest version of all slices as last pulled; 0 before the first pull.
  std::pair<uint64_t, uint64_t> pulled_versions() const;

  // Returns the number of push messages that each shard, by rank, has acknowledged.
  std::vector<uint64_t> acknowledged_pushes() const;

  // Ends all calls in flight, and all later ones, with CANCELLED and the reason.
  void Shutdown(const std::string& reason);

 private:
  struct Operation;
  struct Request;
  using Slices = std::vector<SliceTransfer>;
  // A tensor declared by this client or by others.
  struct Tensor {
    PlacedTensor placed;
    // Each slice's version as last pulled, and one more than the step of its last acknowledged push.
    std::vector<uint64_t> versions;
    std::vector<uint64_t> finished_steps;
  };

  explicit Client(ClientOptions options);
  absl::Status Reach();
  // Adds the map's tensors and shards; ignores a map that is older than the last.
  absl::Status UseMap(ShardMap map);
  // Moves channels to the addresses in the coordinator's newest map, until Shutdown.
  void FollowMap();
  // Gets a newer map each time a shard reports that it does not own a slice, until Shutdown.
  void RefreshMap();
  void AskForMap();
  void MoveChannels();
  absl::StatusOr<ShardMap> Place(absl::Span<const v1::TensorSpec> specs);
  std::vector<ShardChannel*> channels() const;
  Future<PushResult> PushPullOrPush(const Request& request);
  void Begin(const Request& request, std::shared_ptr<Operation> operation);
  absl::StatusOr<std::vector<Slices>> Route(const Request& request) const;
  // Reports the versions that this worker has seen to a shard that may have recovered an older state (durability WAL).
  void OnRetry(uint32_t shard);
  void Report(uint32_t shard);
  std::vector<v1::ReportVersionsRequest> DescribeSeen(uint32_t shard) const;
  void OnMessageDone(Operation* operation, const ShardMessage& message, ShardReply reply);

  const ClientOptions options_;
  // Null if gradients are sent as fp32. Set by Connect, then constant; the channels use it.
  std::unique_ptr<ErrorFeedback> feedback_;
  // Null if the options name the shards. Set by Connect, then constant.
  std::unique_ptr<CoordinatorLink> coordinator_;

  // True if shards may change their addresses.
  const bool follows_;

  mutable absl::Mutex mutex_;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  // A shard reported that it does not own a slice that the map assigns to it.
  bool map_is_wrong_ ABSL_GUARDED_BY(mutex_) = false;
  ShardMap map_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
  // By rank. Only grows, so channels may be used outside the lock.
  std::vector<std::unique_ptr<ShardChannel>> channels_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_operation_ ABSL_GUARDED_BY(mutex_) = 1;
  // Number of reports in flight per shard, and shards that need another report because of later retries.
  absl::flat_hash_map<uint32_t, uint32_t> reports_in_flight_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint32_t> reports_due_ ABSL_GUARDED_BY(mutex_);
  // Runs FollowMap or RefreshMap if there is a coordinator.
  std::thread follower_;
};

}  // namespace ballast
