// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace ballast {

// Fields of a message by their paths, as `--set` names them: "training.epochs", "model.layers[0].dense.units".

// Sets one field: "training.epochs=3". An element of a repeated field has its index, from 0 or, from the end, from -1;
// its size or "+" appends an element. Without an index the list is replaced: "kernel=[3, 5]". A message is written as
// in a job file, with or without its braces: "policy=bounded { steps_ahead: 4 }"; it is replaced as a whole. Texts need
// no quotes, and names of an enum may be in any case and lack its prefix: "codec.gradients=int8". Returns the field's
// path with all indices: "model.layers[6].dense.units". INVALID_ARGUMENT names the path, got and want; the message may
// then be half changed. Does not check limits.
absl::StatusOr<std::string> SetField(google::protobuf::Message& message, absl::string_view setting);

// A field of a message that a name probably means.
struct NearestField {
  // Empty: there is none.
  std::string path;
  // Edit distance of the name from the field's own name, the last of its path; 0 also for initials ("lr").
  size_t distance = 0;
};

// Finds the field whose own name is nearest, at any depth. Prefers kinds that `message` has set.
NearestField FindNearestField(const google::protobuf::Message& message, absl::string_view name);

// Returns the first field in which two messages of one type differ: "adam.beta1: got nothing, want 0.9". Empty if they
// are equal.
std::string FirstDifference(const google::protobuf::Message& got, const google::protobuf::Message& want);

// Merges `from` over `to`. Unlike MergeFrom, a repeated field that `from` has replaces the one in `to`.
void MergeOver(const google::protobuf::Message& from, google::protobuf::Message& to);

}  // namespace ballast
