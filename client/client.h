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

// Flat, though long, since a caller sets a few of them by name.
struct ClientOptions {
  // Where the job's coordinator is, host:port; or else the shards themselves, by rank.
  std::string coordinator;
  std::vector<std::string> shards;
  // What is shown to them and how they are known; the default does for servers of this machine that want none. Made by
  // Credentials::Load, for all clients of a process.
  Credentials credentials;

  // Of the job, as DeclareTensorsRequest has them. The first declaration stands for all clients. Where durability is
  // replica, and there is a coordinator, the client follows shards to other addresses.
  std::string job;
  v1::ConsistencyPolicy policy;
  uint32_t workers = 1;
  v1::Durability durability;

  // Who pushes. No two clients may push as the same worker and incarnation, not even one after the other: a shard
  // takes the second's pushes for the first's, sent again, and does not apply them.
  uint32_t worker = 0;
  // 0: the time when Connect is called, in microseconds since 1970. It lets a process that starts again go on.
  uint64_t incarnation = 0;

  // For Connect to reach everyone.
  absl::Duration connect_timeout = absl::Seconds(20);
  // For an answer to one attempt of a call, less any wait for other workers.
  absl::Duration rpc_timeout = absl::Seconds(10);
  // A call that fails in passing is tried again until so long after its first failure.
  absl::Duration retry_timeout = absl::Seconds(30);
  // For other workers, of a pull; for servers to join, of Declare. 1 ms to 600 s.
  absl::Duration wait_timeout = absl::Seconds(60);
  // For all servers to join, before tensors are placed.
  absl::Duration gather_timeout = absl::Seconds(60);

  // How gradients and values travel.
  v1::Codec codec;

  // Connections to a shard, and messages on their way to it at once. Two and eight fill a loopback; see
  // docs/results/README.md.
  uint32_t channels_per_shard = 2;
  uint32_t messages_in_flight = 8;
  // Large messages to a shard of the same machine go through memory shared with it, where it has room for that.
  bool shared_memory = true;

  // Take the time when each answer begins to come, for AnswerTimes: one more callback for each message.
  bool watch_answers = false;
};

// When a call's answers, one for each of its messages, came.
struct AnswerTimes {
  // When the first and the last of them began to; as if at their end where answers are not watched.
  absl::Time first = absl::InfiniteFuture();
  absl::Time last = absl::InfinitePast();
  // When all of them were there and taken apart.
  absl::Time end = absl::InfinitePast();
};

struct PushResult {
  // Slices updated at once; kept until their step's other gradients are in; not used since their step was over.
  uint64_t applied = 0;
  uint64_t buffered = 0;
  uint64_t dropped = 0;
  // Largest among the applied slices.
  uint64_t max_staleness = 0;
  float learning_rate = 0;
  // An attempt whose answer was lost had been taken before; it was applied once all the same.
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

// A whole tensor's gradient and values in the caller's memory, row-major: as floats, or instead as the client's codec
// encodes them, where that is bf16 or fp16, for a caller that encodes and decodes itself. The memory is the client's
// from the call until its future is ready.
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

// A whole tensor's first values in the caller's memory, row-major; the client's until the call's future is ready.
struct FirstValues {
  uint32_t tensor_id = 0;
  absl::Span<const float> values;
};

struct SetResult {
  // Slices that were set now; and those that had been set to the same before.
  uint64_t set = 0;
  uint64_t unchanged = 0;
};

// A job's tensors, on however many shards they lie: routes slices to their owners and remembers their versions. Where a
// shard goes on at another address, what is on its way is sent again there, and still applied once.
// Errors name the shard, its address and the call. INVALID_ARGUMENT and unknown tensors change nothing; after any other
// failure of a push the job's weights may hold a part of it. Retries are the client's own and safe: a push is applied
// once. A future is ready within the options' timeouts, whatever the servers do.
// Calls that are not waited for may overtake each other. All workers should push-pull tensors in the same order.
// Thread safety: all methods may be called from any thread. Destroying the client ends what is in flight.
class Client {
 public:
  // Reaches the coordinator or every shard, else UNAVAILABLE or DEADLINE_EXCEEDED naming the address and how long it
  // tried. INVALID_ARGUMENT for options out of their range, an address beyond this machine without TLS among them;
  // UNAUTHENTICATED or PERMISSION_DENIED for a token that does not do.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  ~Client();

  // Places the tensors and creates them on their shards; blocks. Declaring the same again is OK, differently is
  // FAILED_PRECONDITION. Tensors that others declared through the coordinator before Connect need no declaration.
  absl::Status Declare(absl::Span<const v1::TensorSpec> specs);

  // Sets the values that tensors begin with, once for a job; to train on from values that somebody has. Pulls of a
  // tensor whose initializer is Provided wait for it, at step 0 too, so one client sets and all others pull. Setting
  // the same again is OK at any time; other values, or a tensor that a push has reached, are FAILED_PRECONDITION, and
  // some of the tensors' slices may then have been set.
  Future<SetResult> SetValues(absl::Span<const FirstValues> tensors);

  // Hands in gradients, means over `examples` examples, computed when the worker had finished `step` steps. With
  // examples = 0 the worker takes part in the step and adds nothing; gradients may then be empty. `schedule_position`
  // is where in the job's data the step began, as PushHeader has it, for schedules that follow that.
  Future<PushResult> Push(uint64_t step, uint32_t examples, absl::Span<const TensorGradient> gradients,
                          std::optional<double> schedule_position = std::nullopt);

  // Reads values; under policy sync those that hold the update of step - 1.
  Future<PullResult> Pull(uint64_t step, absl::Span<const TensorValues> values);

  // Push at `step` and pull at `step` + 1 in one round trip. Both lists name the same tensors in the same order.
  Future<PushResult> PushPull(uint64_t step, uint32_t examples, absl::Span<const TensorGradient> gradients,
                              absl::Span<const TensorValues> values,
                              std::optional<double> schedule_position = std::nullopt);

  // Says that this worker pushes nothing more for now, so that nobody waits for it until its next push; blocks. To be
  // called when the futures of its pushes are ready.
  absl::Status Pause();

  // What each shard holds and has done, by rank; blocks.
  absl::StatusOr<std::vector<v1::GetStatusResponse>> GetStatus();

  ShardMap shard_map() const;

  // The oldest and the newest version among all tensors' slices, each as it was last pulled; 0 before that.
  std::pair<uint64_t, uint64_t> pulled_versions() const;

  // Push messages that each shard, by rank, has acknowledged.
  std::vector<uint64_t> acknowledged_pushes() const;

  // Ends everything in flight, and all that comes later, with CANCELLED and the reason.
  void Shutdown(const std::string& reason);

 private:
  struct Operation;
  struct Request;
  using Slices = std::vector<SliceTransfer>;
  // Of every tensor that was declared, here or by others.
  struct Tensor {
    PlacedTensor placed;
    // Of each slice, as last pulled; and one more than the step of its last push that was answered.
    std::vector<uint64_t> versions;
    std::vector<uint64_t> finished_steps;
  };

  explicit Client(ClientOptions options);
  absl::Status Reach();
  // Takes the map's tensors and shards in; one that is older than the last changes nothing.
  absl::Status UseMap(ShardMap map);
  // Moves channels to where the coordinator says that their shards are, until Shutdown.
  void FollowMap();
  // Gets a newer map each time a shard says that it does not own a slice, until Shutdown.
  void RefreshMap();
  void AskForMap();
  void MoveChannels();
  absl::StatusOr<ShardMap> Place(absl::Span<const v1::TensorSpec> specs);
  std::vector<ShardChannel*> channels() const;
  Future<PushResult> PushPullOrPush(const Request& request);
  void Begin(const Request& request, std::shared_ptr<Operation> operation);
  absl::StatusOr<std::vector<Slices>> Route(const Request& request) const;
  // Tells a shard that may have come back older (durability WAL) what this worker has seen of it.
  void OnRetry(uint32_t shard);
  void Report(uint32_t shard);
  std::vector<v1::ReportVersionsRequest> DescribeSeen(uint32_t shard) const;
  void OnMessageDone(Operation* operation, const ShardMessage& message, ShardReply reply);

  const ClientOptions options_;
  // Null where gradients travel as fp32. Set by Connect, then constant; the channels use it.
  std::unique_ptr<ErrorFeedback> feedback_;
  // Null where the shards were given. Set by Connect, then constant.
  std::unique_ptr<CoordinatorLink> coordinator_;

  // Whether shards may change their addresses.
  const bool follows_;

  mutable absl::Mutex mutex_;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  // A shard does not own a slice that the map gives it.
  bool map_is_wrong_ ABSL_GUARDED_BY(mutex_) = false;
  ShardMap map_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
  // By rank; only grows, so that its channels may be used outside the lock.
  std::vector<std::unique_ptr<ShardChannel>> channels_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_operation_ ABSL_GUARDED_BY(mutex_) = 1;
  // Shards that are told now, and those that must be told again, for more was sent again since.
  absl::flat_hash_map<uint32_t, uint32_t> reports_in_flight_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint32_t> reports_due_ ABSL_GUARDED_BY(mutex_);
  // Runs FollowMap, or RefreshMap; if there is a coordinator.
  std::thread follower_;
};

}  // namespace ballast
