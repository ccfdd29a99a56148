// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "ballast/v1/storage.pb.h"
#include "server/shard_capture.h"

namespace ballast {

v1::LoggedDeclaration EncodeDeclaration(const JobTerms& job, absl::Span<const OwnedTensor> tensors);

JobTerms DecodeTerms(const v1::LoggedDeclaration& declaration);
std::vector<OwnedTensor> DecodeTensors(const v1::LoggedDeclaration& declaration);

}  // namespace ballast
