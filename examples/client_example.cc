// SPDX-License-Identifier: Apache-2.0
// A complete client: declares a tensor on a server, pushes a gradient, pulls the result.
//   ballast_server &
//   client_example 127.0.0.1:7700
#include <iostream>
#include <vector>

#include "client/client.h"

using ballast::Client;

static absl::Status Run(const char* address) {
  ballast::ClientOptions options;
  options.shards = {address};
  options.job = "client-example";
  options.policy.mutable_async();
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
  if (!client.ok()) return client.status();

  ballast::v1::TensorSpec weight;
  weight.set_id(1);
  weight.set_name("weight");
  weight.add_shape(4);
  weight.mutable_initializer()->mutable_constant()->set_value(1.0f);
  weight.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1f);
  if (absl::Status status = (*client)->Declare({weight}); !status.ok()) return status;

  // Push and Pull return futures; the memory must stay valid until they are ready.
  const std::vector<float> gradient = {1, 2, 3, 4};
  absl::StatusOr<ballast::PushResult> pushed = (*client)->Push(0, 1, {{1, gradient}}).Get();
  if (!pushed.ok()) return pushed.status();

  std::vector<float> values(4);
  absl::StatusOr<ballast::PullResult> pulled = (*client)->Pull(1, {{1, absl::MakeSpan(values)}}).Get();
  if (!pulled.ok()) return pulled.status();

  std::cout << "weight:";
  for (float value : values) std::cout << " " << value;
  std::cout << std::endl;
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "error: got " << argc - 1 << " arguments, want one: the server's host:port" << std::endl;
    return 2;
  }
  const absl::Status status = Run(argv[1]);
  if (status.ok()) return 0;
  std::cerr << "error: " << status.message() << std::endl;
  return 1;
}
