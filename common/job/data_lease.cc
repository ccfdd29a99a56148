// SPDX-License-Identifier: Apache-2.0
#include "common/job/data_lease.h"

namespace ballast {

v1::StreamPosition ToProto(const StreamPosition& position) {
  v1::StreamPosition proto;
  proto.set_file(position.file);
  proto.set_offset(position.offset);
  proto.set_lines(position.lines);
  return proto;
}

v1::StreamSpan ToProto(const StreamSpan& span) {
  v1::StreamSpan proto;
  *proto.mutable_begin() = ToProto(span.begin);
  proto.set_end_offset(span.end_offset);
  proto.set_end_lines(span.end_lines);
  proto.set_examples(span.examples);
  return proto;
}

v1::Lease ToProto(const DataLease& lease) {
  v1::Lease proto;
  proto.set_id(lease.id);
  proto.set_epoch(lease.epoch);
  proto.set_begin(lease.begin);
  proto.set_end(lease.end);
  proto.set_steps(lease.steps);
  proto.set_share_begin(lease.share_begin);
  proto.set_share_end(lease.share_end);
  if (lease.span.has_value()) *proto.mutable_span() = ToProto(*lease.span);
  return proto;
}

StreamPosition FromProto(const v1::StreamPosition& position) {
  return {position.file(), position.offset(), position.lines()};
}

StreamSpan FromProto(const v1::StreamSpan& span) {
  return {FromProto(span.begin()), span.end_offset(), span.end_lines(), span.examples()};
}

DataLease FromProto(const v1::Lease& lease) {
  DataLease from{lease.id(),    lease.epoch(),       lease.begin(),    lease.end(),
                 lease.steps(), lease.share_begin(), lease.share_end()};
  if (lease.has_span()) from.span = FromProto(lease.span());
  return from;
}

}  // namespace ballast
