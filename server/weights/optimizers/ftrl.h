// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "server/weights/optimizers/optimizer.h"

namespace ballast {

// config.ftrl() must be set and valid.
std::unique_ptr<Optimizer> MakeFtrl(const v1::Optimizer& config, InstructionSet set);

}  // namespace ballast
