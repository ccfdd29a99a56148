// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/fault/hostile/attack.h"

namespace ballast {

// With a reader's token: every method of every service, with every field, valid, mutated and damaged.
Attack ReaderCalls();

}  // namespace ballast
