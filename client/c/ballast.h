// SPDX-License-Identifier: Apache-2.0
// The client of Ballast's parameter servers, for C and for every language that can call C. A program is one worker of a
// job: it declares tensors and tables, which live on the servers with their optimizers, pushes gradients and pulls
// values.
//
// Errors: a function that can fail returns NULL, or an error that the caller frees. An argument that is NULL and must
// not be is an error too; an operation without a worker gets the number 0. Operations: push, pull and so on begin an
// operation and return its number at once, from 1; the outcome of each, an error too, is taken once with ballast_wait
// or ballast_wait_any. Until then the arrays that the operation was given belong to it; all other arguments are copied.
// The servers and the job bound the time of every operation. Texts of messages are in protobuf's text format, as in a
// job file: "sgd { learning_rate: 0.1 }". Thread safety: any thread may call any function, but none while or after
// another one calls ballast_free; one at a time calls ballast_next_lease, ballast_catch_up and ballast_leave. A process
// that forks uses a worker only in the parent.
#ifndef BALLAST_H_
#define BALLAST_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ballast_worker ballast_worker;
typedef struct ballast_error ballast_error;

// Returns the version of this library, "0.1.0".
const char* ballast_version(void);

// --- errors ---

// Code of gRPC, such as 3 (INVALID_ARGUMENT), 4 (DEADLINE_EXCEEDED), 9 (FAILED_PRECONDITION) or 14 (UNAVAILABLE).
int ballast_error_code(const ballast_error* error);
// Name of an ErrorReason of error.proto, "WAIT_TIMEOUT"; "" if there is none. Programs branch on code and reason.
const char* ballast_error_reason(const ballast_error* error);
const char* ballast_error_message(const ballast_error* error);
// Subjects of the failure: name and value of each, such as "rank" and "3".
size_t ballast_error_details(const ballast_error* error);
const char* ballast_error_detail_name(const ballast_error* error, size_t index);
const char* ballast_error_detail_value(const ballast_error* error, size_t index);
// The strings of an error live as long as it. NULL is ignored.
void ballast_error_free(ballast_error* error);

// --- the worker ---

// Set everything to 0 first; 0 and NULL stand for the defaults.
typedef struct ballast_options {
  // sizeof(ballast_options).
  size_t size;
  // host:port of server 0. Default: $BALLAST_COORDINATOR, or 127.0.0.1:7700.
  const char* coordinator;
  // Text of a Job (job.proto) that is equal for all workers: a name and, if it has them, policy (default: sync),
  // durability and codec; with `examples` also training { epochs: E batch_size: B }. Required. $BALLAST_JOB,
  // $BALLAST_POLICY, $BALLAST_DURABILITY and $BALLAST_CODEC, which `ballast run` sets, replace its fields.
  const char* job;
  // The worker's rank plus 1. Default: $BALLAST_RANK, or the lowest free rank.
  uint32_t rank_plus_1;
  // Number of examples of which ballast_next_lease hands out positions; equal for all workers.
  uint64_t examples;
  // Paths of PEM files, and of a file that holds a token. Defaults: $BALLAST_TLS_CA, and so on.
  const char* tls_ca;
  const char* tls_cert;
  const char* tls_key;
  const char* token_file;
  // Limit on the wait until all servers and workers have joined. Default: $BALLAST_GATHER_TIMEOUT, or 300.
  double gather_seconds;
} ballast_options;

// Joins the job and waits until all its members have.
ballast_error* ballast_join(const ballast_options* options, ballast_worker** worker);

// Ends all operations and leaves the job; the other workers go on. With a failure, the job fails for that reason.
ballast_error* ballast_leave(ballast_worker* worker, const char* failure);
// Ends all operations, and ballast_wait_any, but not the membership: the servers will see that the worker is lost.
// NULL is ignored. No other thread may use the worker any more.
void ballast_free(ballast_worker* worker);

typedef struct ballast_membership {
  uint32_t rank;
  uint32_t workers;
  uint32_t servers;
  // An earlier process of this rank has trained and made `first_step` steps: call ballast_catch_up after declaring.
  int32_t returns;
  uint64_t first_step;
} ballast_membership;

void ballast_get_membership(const ballast_worker* worker, ballast_membership* membership);

// Declares tensors, each by the text of a TensorSpec (tensor.proto) without an id: name, shape, optimizer and
// initializer, which is provided {} if ballast_set_values gives the first values. Writes the `count` ids. All workers
// declare the same, in the same order.
ballast_error* ballast_declare(ballast_worker* worker, const char* const* specs, size_t count, uint32_t* ids);
// The same for tables, by the text of a TableSpec (table.proto): name, dim, optimizer.
ballast_error* ballast_declare_tables(ballast_worker* worker, const char* const* specs, size_t count, uint32_t* ids);

// --- operations on tensors ---

// A whole tensor, row-major.
typedef struct ballast_tensor {
  uint32_t id;
  // Not written to by a push.
  float* data;
  uint64_t elements;
} ballast_tensor;

// When a push was computed.
typedef struct ballast_step {
  // Number of steps that the worker had finished: pushes of this tensor, from 0.
  uint64_t step;
  // Number of examples of which the gradients are the mean. 0: the worker ends the step without contributing.
  uint32_t examples;
  // Fraction of the job's data that was done, 0 to 1, which schedules without a total follow; below 0: not known.
  double position;
} ballast_step;

// Sets the first values of tensors with the initializer provided {}, once per job: one worker sets, and all pull.
// Repeating it with the same values succeeds; others are refused with reason VALUES_SET.
uint64_t ballast_set_values(ballast_worker* worker, const ballast_tensor* tensors, size_t count);
uint64_t ballast_push(ballast_worker* worker, const ballast_step* step, const ballast_tensor* gradients, size_t count);
// Under policy sync waits for the update of step - 1. Step 0 waits for nothing but first values.
uint64_t ballast_pull(ballast_worker* worker, uint64_t step, const ballast_tensor* values, size_t count);
// Pushes at the step and pulls at the next one in one round trip. Both arrays name the same tensors in the same order.
uint64_t ballast_push_pull(ballast_worker* worker, const ballast_step* step, const ballast_tensor* gradients,
                           const ballast_tensor* values, size_t count);
// Does the same as ballast_push_pull, for a caller that computes meanwhile and waits for this very operation. A thread
// of the library sends the gradients, in the order of these calls. ballast_wait_any ignores the operation.
uint64_t ballast_push_pull_owned(ballast_worker* worker, const ballast_step* step, const ballast_tensor* gradients,
                                 const ballast_tensor* values, size_t count);

// --- operations on rows of tables ---

// Rows of one table. Ids are any 64 bits, in any order, and may be repeated.
typedef struct ballast_rows {
  uint32_t table;
  const uint64_t* ids;
  uint64_t count;
  // [count, dim]: the memory for a pull's values, or a push's gradients, of which those of a repeated id are added.
  float* data;
  uint64_t elements;
  // [count] or NULL: written by a pull; given to a push, staleness is counted from them.
  uint32_t* versions;
} ballast_rows;

uint64_t ballast_pull_rows(ballast_worker* worker, uint64_t step, const ballast_rows* tables, size_t count);
// `last_of_step` other than 0 ends the worker's step of rows: the last push of each step does so.
uint64_t ballast_push_rows(ballast_worker* worker, const ballast_step* step, const ballast_rows* tables, size_t count,
                           int last_of_step);

// --- outcomes ---

// Sums over the slices or rows of an operation; those that do not apply to it are 0.
typedef struct ballast_result {
  // Updated at once; waiting for the step's other gradients; not used, because their step was over.
  uint64_t applied;
  uint64_t buffered;
  uint64_t dropped;
  // Largest staleness, in updates.
  uint64_t max_staleness;
  // Rows that began with this push.
  uint64_t created;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  float learning_rate;
} ballast_result;

// Waits up to `seconds` for an operation, and takes its outcome; `result` may be NULL. Reason WAIT_TIMEOUT if it has
// not ended: it goes on, and may be waited for again.
ballast_error* ballast_wait(ballast_worker* worker, uint64_t operation, double seconds, ballast_result* result);
// Waits up to `seconds` for any operation, also one that begins meanwhile, and takes its outcome. Writes its number; 0
// if none ended in that time, with code 1 (CANCELLED) if the worker has left.
ballast_error* ballast_wait_any(ballast_worker* worker, double seconds, uint64_t* operation, ballast_result* result);

// --- leases ---

typedef struct ballast_lease {
  uint64_t id;
  // Counts from 0.
  uint32_t epoch;
  // Steps that the worker makes; the last ones may have fewer examples, or none.
  uint32_t steps;
  // Positions [begin, end) of the epoch's order; each batch takes the next ones.
  uint64_t begin;
  uint64_t end;
  // Fraction of the job's examples that is done when the lease begins, and when it ends.
  double share_begin;
  double share_end;
  // No worker waited for this one meanwhile: call ballast_catch_up before computing gradients.
  int32_t behind;
} ballast_lease;

// Waits up to `seconds` for the next lease, with no operation in flight. Writes 1 to `finished` once all epochs are
// done, and no lease then; otherwise 0. A lease that its worker does not complete goes to another one.
ballast_error* ballast_next_lease(ballast_worker* worker, double seconds, ballast_lease* lease, int* finished);
// Reports a lease as done, after its last push has ended: the worker's total numbers of steps and of batches.
ballast_error* ballast_complete_lease(ballast_worker* worker, uint64_t lease, uint64_t steps, uint64_t batches);
// Tells the servers that no step waits for this worker until its next push, with no operation in flight: it ends, or
// does something else for a while. The next lease is then one that is behind.
ballast_error* ballast_pause(ballast_worker* worker);
// Pulls the newest values of all the job's tensors and reaches the step of the other workers, with no operation in
// flight; writes the worker's next step.
ballast_error* ballast_catch_up(ballast_worker* worker, const ballast_tensor* values, size_t count, uint64_t* step);
// Writes the examples at positions [begin, begin + count) of an epoch's shuffled order of n examples, which depends on
// the seed; the order in which Ballast's own workers read.
ballast_error* ballast_shuffled(uint64_t n, uint64_t seed, uint32_t epoch, uint64_t begin, uint64_t count,
                                uint64_t* examples);

// --- progress ---

typedef struct ballast_progress {
  // Total number of steps finished.
  uint64_t step;
  // Epoch of the examples, from 0.
  uint32_t epoch;
  float learning_rate;
  // Since the last report: examples, the sum of their losses, steps, seconds, and seconds of them spent waiting.
  uint64_t examples;
  double loss_sum;
  uint64_t steps;
  double seconds;
  double wait_seconds;
  // Other than 0: the test figures below are those after `epochs_done` epochs. Accuracy below 0: not known.
  int32_t evaluated;
  uint32_t epochs_done;
  double test_loss;
  double test_accuracy;
} ballast_progress;

// Adds this worker's work to the job's metrics, which `ballast status` shows.
ballast_error* ballast_report(ballast_worker* worker, const ballast_progress* progress);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // BALLAST_H_
