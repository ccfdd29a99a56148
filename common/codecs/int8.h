// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "common/codecs/codec.h"

namespace ballast {

// Signed bytes with a scale for each 256 elements, rounded up or down at random so that the expected value is exact.
std::unique_ptr<const Codec> MakeInt8(const v1::Codec& config);

}  // namespace ballast
