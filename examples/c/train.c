// SPDX-License-Identifier: Apache-2.0
// A worker in C: fits y = w x + b to points of y = 3 x - 1, with the weights and Adam on the servers.
//   ballast_server &
//   cc train.c -lballast -o train && ./train
#include <ballast.h>
#include <stdio.h>
#include <stdlib.h>

// Ends the program, and the job, if there is an error.
static void check(ballast_worker* worker, ballast_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "error: %s (%s)\n", ballast_error_message(error), ballast_error_reason(error));
  if (worker != NULL) ballast_error_free(ballast_leave(worker, ballast_error_message(error)));
  ballast_error_free(error);
  ballast_free(worker);
  exit(1);
}

static void finish(ballast_worker* worker, uint64_t operation) {
  check(worker, ballast_wait(worker, operation, 60, NULL));
}

int main(void) {
  ballast_worker* worker = NULL;
  ballast_options options = {.size = sizeof(options), .job = "name: \"line\" policy { sync {} }"};
  check(NULL, ballast_join(&options, &worker));
  ballast_membership member;
  ballast_get_membership(worker, &member);

  const char* spec = "name: \"line\" shape: 2 initializer { provided {} } optimizer { adam { learning_rate: 0.1 } }";
  float weights[2] = {0, 0}, gradient[2];
  ballast_tensor values = {.data = weights, .elements = 2}, gradients = {.data = gradient, .elements = 2};
  check(worker, ballast_declare(worker, &spec, 1, &values.id));
  gradients.id = values.id;
  if (member.rank == 0) finish(worker, ballast_set_values(worker, &values, 1));
  finish(worker, ballast_pull(worker, 0, &values, 1));

  enum { kPoints = 32, kSteps = 400 };
  for (uint64_t i = 0; i < kSteps; ++i) {
    gradient[0] = gradient[1] = 0;
    for (int point = 0; point < kPoints; ++point) {
      // Each worker has points of its own.
      const float x = (float)(point * member.workers + member.rank) / (kPoints * member.workers);
      const float error = weights[0] * x + weights[1] - (3 * x - 1);
      gradient[0] += 2 * error * x / kPoints;
      gradient[1] += 2 * error / kPoints;
    }
    const ballast_step step = {.step = i, .examples = kPoints, .position = -1};
    finish(worker, ballast_push_pull(worker, &step, &gradients, &values, 1));
  }
  printf("y = %.2f x %+.2f\n", weights[0], weights[1]);
  check(worker, ballast_leave(worker, NULL));
  ballast_free(worker);
  return 0;
}
