// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "common/codecs/codec.h"

namespace ballast {

// IEEE 754 binary16, rounded to nearest even. Magnitudes beyond its range become infinity; NaN stays NaN.
std::unique_ptr<const Codec> MakeFp16(const v1::Codec& config);

}  // namespace ballast
