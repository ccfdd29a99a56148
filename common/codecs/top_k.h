// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "common/codecs/codec.h"

namespace ballast {

// The `top_k_fraction` of the elements with the largest magnitude; NaN counts as the largest.
std::unique_ptr<const Codec> MakeTopK(const v1::Codec& config);

}  // namespace ballast
