// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <string>

#include "google/protobuf/message.h"

namespace ballast {

// Changes one field, here or deeper: to a value at an edge of its type or of what services allow, to nothing, to many.
void Mutate(google::protobuf::Message& message, std::mt19937_64& random);

// What a hostile peer sends in place of `valid`: a mutated message, perhaps with damaged bytes, or nothing but noise.
std::string HostileBytes(const google::protobuf::Message& valid, std::mt19937_64& random);

}  // namespace ballast
