// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/shard/shard_state.h"

namespace ballast {

internal::v1::LoggedDeclaration EncodeDeclaration(const JobConfig& job, absl::Span<const OwnedTensor> tensors);

JobConfig DecodeJobConfig(const internal::v1::LoggedDeclaration& declaration);
std::vector<OwnedTensor> DecodeTensors(const internal::v1::LoggedDeclaration& declaration);

}  // namespace ballast
