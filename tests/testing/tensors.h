// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "common/tensors/tensor_spec_fixture.h"

namespace ballast {

// A tensor like SgdSpec's, all 100.
inline v1::TensorSpec Spec(uint32_t id, const std::string& name, int64_t elements) {
  v1::TensorSpec spec = SgdSpec(id, name, elements);
  spec.mutable_initializer()->mutable_constant()->set_value(100);
  return spec;
}

// Connects and declares the tensors.
inline absl::StatusOr<std::unique_ptr<Client>> Join(ClientOptions options, const std::vector<v1::TensorSpec>& specs) {
  auto client = Client::Connect(std::move(options));
  if (!client.ok()) return client.status();
  if (absl::Status status = (*client)->Declare(specs); !status.ok()) return status;
  return client;
}

}  // namespace ballast
