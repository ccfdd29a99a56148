// SPDX-License-Identifier: Apache-2.0
#include "bench/rows/rows_in_process.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "client/rows/row_message.h"
#include "common/tables/table_spec.h"
#include "server/memory/value_buffer.h"
#include "server/tables/message_rows.h"
#include "server/tables/row_gradients.h"

namespace ballast {
namespace {

SparseTableOptions WholeTable(const v1::TableSpec& spec, const RowOptimizer& optimizer) {
  SparseTableOptions options;
  options.dim = spec.dim();
  options.slot_floats = optimizer.SlotFloats(options.dim);
  options.range_bits = RangeBits(spec);
  options.range_count = RangeCount(spec);
  return options;
}

// All rows of the call in one message.
RowRun WholeRun(std::shared_ptr<const TableRows> rows) {
  const size_t size = rows->order.size();
  return {std::move(rows), 0, size, 0};
}

}  // namespace

RowsInProcess::RowsInProcess()
    : optimizer_(*MakeRowOptimizer(spec_.optimizer())),
      arena_(std::numeric_limits<uint64_t>::max()),
      table_(&arena_, WholeTable(spec_, *optimizer_)) {}

absl::StatusOr<std::unique_ptr<RowsInProcess>> RowsInProcess::Create(uint64_t rows, absl::Span<const float> gradients) {
  std::unique_ptr<RowsInProcess> created(new RowsInProcess());
  const uint64_t most = gradients.size() / kRowDim;
  for (uint64_t first = 0; first < rows; first += most) {
    std::vector<uint64_t> ids(std::min(most, rows - first));
    std::iota(ids.begin(), ids.end(), first);
    const absl::Status pushed = created->Push(ids, gradients.first(ids.size() * kRowDim));
    if (!pushed.ok()) return pushed;
  }
  return created;
}

absl::Status RowsInProcess::Pull(absl::Span<const uint64_t> ids, absl::Span<float> values) const {
  const auto ordered = OrderRows(spec_, RowPull{kRowsTable, ids, values}, v1::ENCODING_FP32);
  if (!ordered.ok()) return ordered.status();
  const RowRun run = WholeRun(*ordered);
  v1::PullRowsRequest request;
  AddQueries({run}, &request);
  const absl::StatusOr<MessageRows> order = MessageRows::Of(request.queries(0).ids(), kRowsTable, /*unordered=*/false);
  if (!order.ok()) return order.status();
  ValueBuffer found(run.size() * kRowDim);
  std::vector<uint32_t> versions(run.size());
  table_.Pull({order->hashes(), &initial_, found.mutable_values().data(), versions.data()});
  ItemWithPayload<v1::RowValues> response;
  response.item.set_table_id(kRowsTable);
  response.item.set_rows(run.size());
  response.item.set_encoding(v1::ENCODING_FP32);
  response.payload.emplace_back(reinterpret_cast<const char*>(found.values().data()), found.size() * sizeof(float));
  return DecodeRows({response}, {run}).status();
}

absl::Status RowsInProcess::Push(absl::Span<const uint64_t> ids, absl::Span<const float> gradients) {
  const auto ordered = OrderRows(spec_, RowPush{kRowsTable, ids, gradients, {}}, v1::ENCODING_FP32);
  if (!ordered.ok()) return ordered.status();
  const RowPayload payload = EncodeRun(WholeRun(*ordered));
  const absl::string_view bytes(reinterpret_cast<const char*>(payload.bytes.begin()), payload.bytes.size());
  RowGradientsView view;
  view.table_id = kRowsTable;
  view.ids = payload.item.ids();
  view.payload = {&bytes, 1};
  const absl::StatusOr<RowGradients> decoded = DecodeRowGradients(view, kRowDim, /*accept_non_finite=*/false);
  if (!decoded.ok()) return decoded.status();
  BatchPush push;
  push.hashes = decoded->order.hashes();
  push.gradients = decoded->values.values().data();
  push.learning_rate = optimizer_->LearningRate(1, std::nullopt);
  push.optimizer = optimizer_.get();
  push.initializer = &initial_;
  table_.Push(push);
  return absl::OkStatus();
}

}  // namespace ballast
