// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/tensors/tensor_spec_fixture.h"
#include "server/tensors/tensor_catalog.h"

namespace ballast {

inline OwnedTensor Tensor(uint32_t id, const std::string& name, int64_t elements) {
  OwnedTensor tensor;
  tensor.spec = SgdSpec(id, name, elements);
  return tensor;
}

inline v1::ConsistencyPolicy AsyncPolicy() {
  v1::ConsistencyPolicy policy;
  policy.mutable_async();
  return policy;
}

inline v1::ConsistencyPolicy SyncPolicy(uint32_t quorum) {
  v1::ConsistencyPolicy policy;
  policy.mutable_sync()->set_quorum(quorum);
  return policy;
}

// A view of the vector.
inline absl::string_view Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace ballast
