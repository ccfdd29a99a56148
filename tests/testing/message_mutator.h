// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <string>

#include "google/protobuf/message.h"

namespace ballast {

// Changes one field at any depth: to a limit of its type or of the services, to nothing, or to many.
void Mutate(google::protobuf::Message& message, std::mt19937_64& random);

// A hostile peer's message in place of `valid`: mutated, perhaps with damaged bytes, or random bytes only.
std::string HostileBytes(const google::protobuf::Message& valid, std::mt19937_64& random);

}  // namespace ballast
