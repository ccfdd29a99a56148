// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// Adds the counts of `from` to `into`.
void Merge(const v1::Work& from, v1::Work& into);

}  // namespace ballast
