// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "common/codecs/codec.h"

namespace ballast {

// Upper half of a binary32, rounded to nearest even. NaN stays NaN.
std::unique_ptr<const Codec> MakeBf16(const v1::Codec& config);

}  // namespace ballast
