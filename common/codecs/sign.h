// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "common/codecs/codec.h"

namespace ballast {

// Signs, with the mean magnitude of each 1024 elements.
std::unique_ptr<const Codec> MakeSign(const v1::Codec& config);

}  // namespace ballast
