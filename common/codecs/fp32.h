// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "common/codecs/codec.h"

namespace ballast {

// Binary32 without change.
std::unique_ptr<const Codec> MakeFp32(const v1::Codec& config);

}  // namespace ballast
