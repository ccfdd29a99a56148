// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "server/weights/optimizers/optimizer.h"

namespace ballast {

// config.nesterov() must be set and valid.
std::unique_ptr<Optimizer> MakeNesterov(const v1::Optimizer& config, InstructionSet set);

}  // namespace ballast
