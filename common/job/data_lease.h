// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// Place in an endless stream of training data: ballast.v1.StreamPosition.
struct StreamPosition {
  // Name of the file, without its directory. Empty: before the first file.
  std::string file;
  // Bytes and lines of the file before the place.
  uint64_t offset = 0;
  uint64_t lines = 0;

  friend bool operator==(const StreamPosition&, const StreamPosition&) = default;
};

// Consecutive rows of one file of a stream: ballast.v1.StreamSpan.
struct StreamSpan {
  StreamPosition begin;
  uint64_t end_offset = 0;
  uint64_t end_lines = 0;
  uint64_t examples = 0;

  StreamPosition end() const { return {begin.file, end_offset, end_lines}; }
  friend bool operator==(const StreamSpan&, const StreamSpan&) = default;
};

// A range of an epoch's examples that one worker holds, as positions in the epoch's order: ballast.v1.Lease. Without
// steps: a mark that all data of `epoch` epochs is done, and that the job awaits their evaluation.
struct DataLease {
  uint64_t id = 0;
  // Counts from 0.
  uint32_t epoch = 0;
  uint64_t begin = 0;
  // One past the last position; begin == end is an empty lease.
  uint64_t end = 0;
  // Number of batches; the last ones may have fewer examples, or none.
  uint32_t steps = 0;
  // Fraction of the job's examples that is done when the lease begins, and when it ends.
  double share_begin = 0;
  double share_end = 0;
  // The rows, in a job with an endless stream.
  std::optional<StreamSpan> span = std::nullopt;
};

// Conversions to messages and back.
v1::StreamPosition ToProto(const StreamPosition& position);
v1::StreamSpan ToProto(const StreamSpan& span);
v1::Lease ToProto(const DataLease& lease);
StreamPosition FromProto(const v1::StreamPosition& position);
StreamSpan FromProto(const v1::StreamSpan& span);
DataLease FromProto(const v1::Lease& lease);

}  // namespace ballast
