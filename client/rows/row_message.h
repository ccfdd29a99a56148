// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "client/rows/row_batch.h"
#include "client/rows/row_order.h"
#include "common/tables/placed_table.h"
#include "common/wire/limits.h"
#include "common/wire/payload_message.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace ballast {

// Returns the encoding of rows for a job's encoding: fp16 and bf16 stay, any other is replaced by fp32, because a row
// is too short for blocks and has no residual.
v1::Encoding RowEncoding(v1::Encoding encoding);

// The rows of one table in one call, shared by the call's messages: each reads or writes its own rows of the caller's
// memory. Either `pull` or `push` has the caller's ids.
struct TableRows {
  uint32_t table_id = 0;
  uint32_t dim = 0;
  v1::Encoding encoding = v1::ENCODING_FP32;
  RowPull pull;
  RowPush push;
  RowOrder order;
  // The table counts uses, so a push has them.
  bool counts_uses = false;

  // Upper bound for a row in a message, in either direction.
  uint64_t RowBytes() const;
  // Bytes of an encoded row.
  uint64_t PayloadBytes() const { return dim * (encoding == v1::ENCODING_FP32 ? uint64_t{4} : uint64_t{2}); }
};

// Orders the rows of a pull or push. INVALID_ARGUMENT, with the table, got and want, if the sizes do not fit the table.
absl::StatusOr<std::shared_ptr<const TableRows>> OrderRows(const v1::TableSpec& spec, const RowPull& pull,
                                                           v1::Encoding encoding);
absl::StatusOr<std::shared_ptr<const TableRows>> OrderRows(const v1::TableSpec& spec, const RowPush& push,
                                                           v1::Encoding encoding);

// Rows [begin, end) of a table's order, in transit to or from one shard. The table is shared by all its runs.
struct RowRun {
  std::shared_ptr<const TableRows> table;
  size_t begin = 0;
  size_t end = 0;
  uint32_t shard = 0;

  size_t size() const { return end - begin; }
};

// Appends the runs of the table's rows to those of their owners; `by_shard` has an entry for each shard.
void SplitByShard(const PlacedTable& placed, std::shared_ptr<const TableRows> rows,
                  std::vector<std::vector<RowRun>>& by_shard);

// Packs a shard's runs into messages, in their order; a run that does not fit is split. An encoded message stays under
// `max_bytes` in either direction, and has each table at most once.
std::vector<std::vector<RowRun>> PackRows(absl::Span<const RowRun> runs, uint64_t max_bytes = kMaxMessageBytes);

// Encoded gradients of a run, with the same bytes in every attempt. `item` has everything but the payload.
struct RowPayload {
  v1::RowGradients item;
  grpc::Slice bytes;
};
RowPayload EncodeRun(const RowRun& run);

// Returns the message of a push; `envelope` has no gradients.
grpc::ByteBuffer EncodeRowGradients(const v1::PushRowsRequest& envelope, absl::Span<const RowPayload> payloads);

// Adds the queries of a pull.
void AddQueries(absl::Span<const RowRun> runs, v1::PullRowsRequest* request);

// Decodes the response to a pull of the runs into the caller's memory, and returns the clocks in it. INTERNAL if the
// response does not match the request, before anything is written.
absl::StatusOr<RowClocks> DecodeRows(absl::Span<const ItemWithPayload<v1::RowValues>> response,
                                     absl::Span<const RowRun> runs);

}  // namespace ballast
