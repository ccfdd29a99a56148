// SPDX-License-Identifier: Apache-2.0
#include "client/rows/row_message.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"
#include "common/simd/memory_access.h"
#include "common/tables/table_spec.h"

namespace ballast {
namespace {

// Upper bounds on the protobuf overhead: tags, lengths and fields of one table's item, and of a header or outcome.
constexpr uint64_t kItemOverheadBytes = 64;
constexpr uint64_t kMessageOverheadBytes = 256;

// Elements that are gathered or scattered at once, so that they stay in a core's L1 cache.
constexpr size_t kBlockElements = 4096;

size_t RowsPerBlock(uint32_t dim) { return std::max<size_t>(kBlockElements / dim, 1); }

absl::Status CheckSize(const v1::TableSpec& spec, const char* what, size_t got, size_t want) {
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("table \"", spec.name(), "\": ", what, ": got ", got, " elements, want ", want));
}

absl::Status CheckCount(const v1::TableSpec& spec, size_t ids) {
  if (ids <= RowOrder::kMaxIds) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("table \"", spec.name(), "\": got ", ids, " ids, want at most ", RowOrder::kMaxIds));
}

// Prefetches the first place of the row kRowsAhead after `row`, because the order by hash visits the caller's memory,
// [ids, dim], at random. The processor itself finds the later lines of a long row.
template <bool kWrite, typename Memory>
void PrefetchAfter(const TableRows& rows, size_t row, const Memory& memory) {
  constexpr size_t kRowsAhead = 16, kLine = 64 / sizeof(float), kLines = 4;
  if (row + kRowsAhead >= rows.order.size()) return;
  const auto* const first = &memory[rows.order[row + kRowsAhead][0].position * size_t{rows.dim}];
  for (size_t i = 0; i < std::min<size_t>(rows.dim, kLine * kLines); i += kLine) {
    kWrite ? PrefetchToWrite(first + i) : __builtin_prefetch(first + i);
  }
}

// Writes the gradients of rows [begin, end) of the order to `out`, [rows, dim]. Repeated ids are added in their order.
void Gather(const TableRows& rows, size_t begin, size_t end, float* out) {
  const size_t dim = rows.dim;
  for (size_t row = begin; row < end; ++row, out += dim) {
    PrefetchAfter<false>(rows, row, rows.push.gradients);
    const absl::Span<const RowOrder::Place> places = rows.order[row];
    CopyFloats(&rows.push.gradients[places[0].position * dim], dim, out);
    for (const RowOrder::Place& place : places.subspan(1)) {
      const float* const gradient = &rows.push.gradients[place.position * dim];
      for (size_t i = 0; i < dim; ++i) out[i] += gradient[i];
    }
  }
}

// Copies the floats of rows [begin, end) of the order, [rows, dim], to each of their places.
void Scatter(const TableRows& rows, size_t begin, size_t end, const char* values) {
  const size_t dim = rows.dim;
  for (size_t row = begin; row < end; ++row, values += dim * sizeof(float)) {
    PrefetchAfter<true>(rows, row, rows.pull.values);
    for (const RowOrder::Place& place : rows.order[row]) {
      CopyFloats(values, dim, &rows.pull.values[place.position * dim]);
    }
  }
}

// Returns the ids of the run's rows, 8 bytes each.
std::string Ids(const RowRun& run, absl::Span<const uint64_t> ids) {
  std::string bytes(run.size() * sizeof(uint64_t), '\0');
  char* out = bytes.data();
  for (size_t row = run.begin; row < run.end; ++row, out += sizeof(uint64_t)) {
    std::memcpy(out, &ids[run.table->order[row][0].position], sizeof(uint64_t));
  }
  return bytes;
}

// Returns the oldest version of each of the run's rows, 4 bytes each.
std::string Versions(const RowRun& run) {
  std::string bytes(run.size() * sizeof(uint32_t), '\0');
  char* out = bytes.data();
  for (size_t row = run.begin; row < run.end; ++row, out += sizeof(uint32_t)) {
    uint32_t oldest = ~uint32_t{0};
    for (const RowOrder::Place& place : run.table->order[row]) {
      oldest = std::min(oldest, run.table->push.versions[place.position]);
    }
    std::memcpy(out, &oldest, sizeof(oldest));
  }
  return bytes;
}

// Returns the uses of each of the run's rows, 2 bytes each; empty if each was used once.
std::string Uses(const RowRun& run) {
  const absl::Span<const uint16_t> uses = run.table->push.uses;
  std::string bytes(run.size() * sizeof(uint16_t), '\0');
  char* out = bytes.data();
  bool repeated = false;
  for (size_t row = run.begin; row < run.end; ++row, out += sizeof(uint16_t)) {
    uint32_t sum = 0;
    for (const RowOrder::Place& place : run.table->order[row]) sum += uses.empty() ? 1 : uses[place.position];
    const uint16_t sent = static_cast<uint16_t>(std::min<uint32_t>(sum, UINT16_MAX));
    repeated |= sent != 1;
    std::memcpy(out, &sent, sizeof(sent));
  }
  return repeated ? bytes : "";
}

// Returns an opened payload. INTERNAL if the item is not the response to the run.
absl::StatusOr<std::unique_ptr<PayloadDecoder>> Open(const ItemWithPayload<v1::RowValues>& got, const RowRun& run) {
  const TableRows& want = *run.table;
  const auto wrong = [&](const auto&... what) {
    return absl::InternalError(absl::StrCat("response: table ", want.table_id, what...));
  };
  if (got.item.table_id() != want.table_id || got.item.rows() != run.size()) {
    return wrong(": got ", got.item.rows(), " rows of table ", got.item.table_id(), ", want ", run.size());
  }
  const size_t versions = want.pull.versions.empty() ? got.item.versions().size() : run.size() * sizeof(uint32_t);
  if (got.item.versions().size() != versions) {
    return wrong(" has ", got.item.versions().size(), " bytes of versions, want ", versions);
  }
  const size_t present = (run.size() + 7) / 8;
  if (!got.item.present().empty() && got.item.present().size() != present) {
    return wrong(" has ", got.item.present().size(), " bytes of present rows, want ", present);
  }
  const absl::StatusOr<const Codec*> codec = FindCodec(got.item.encoding());
  if (!codec.ok()) return wrong(": ", codec.status().message());
  if (RowEncoding((*codec)->encoding()) != (*codec)->encoding()) {
    return wrong(" is ", (*codec)->name(), ", want fp32, fp16 or bf16");
  }
  auto payload = (*codec)->OpenPayload(got.payload, run.size() * want.dim);
  if (!payload.ok()) return wrong(": ", payload.status().message());
  return payload;
}

// Writes the versions and the presence of the run's rows to the caller's memory.
void ScatterState(const v1::RowValues& item, const RowRun& run) {
  const RowPull& pull = run.table->pull;
  for (size_t i = 0; i < run.size(); ++i) {
    uint32_t version = 0;
    if (!pull.versions.empty()) std::memcpy(&version, &item.versions()[i * sizeof(version)], sizeof(version));
    const bool present = item.present().empty() || (item.present()[i / 8] >> (i % 8) & 1) != 0;
    for (const RowOrder::Place& place : run.table->order[run.begin + i]) {
      if (!pull.versions.empty()) pull.versions[place.position] = version;
      if (!pull.present.empty()) pull.present[place.position] = present ? 1 : 0;
    }
  }
}

}  // namespace

v1::Encoding RowEncoding(v1::Encoding encoding) {
  return encoding == v1::ENCODING_FP16 || encoding == v1::ENCODING_BF16 ? encoding : v1::ENCODING_FP32;
}

uint64_t TableRows::RowBytes() const {
  constexpr uint64_t kIdBytes = sizeof(uint64_t), kVersionBytes = sizeof(uint32_t), kUsesBytes = sizeof(uint16_t);
  if (!push.ids.empty()) {
    return kIdBytes + PayloadBytes() + (push.versions.empty() ? 0 : kVersionBytes) + (counts_uses ? kUsesBytes : 0);
  }
  // A bit tells that the row exists.
  return std::max(kIdBytes, PayloadBytes() + (pull.versions.empty() ? 0 : kVersionBytes) + 1);
}

absl::StatusOr<std::shared_ptr<const TableRows>> OrderRows(const v1::TableSpec& spec, const RowPull& pull,
                                                           v1::Encoding encoding) {
  absl::Status status = CheckCount(spec, pull.ids.size());
  status.Update(CheckSize(spec, "memory for the values", pull.values.size(), pull.ids.size() * spec.dim()));
  if (!pull.versions.empty()) {
    status.Update(CheckSize(spec, "memory for the versions", pull.versions.size(), pull.ids.size()));
  }
  if (!pull.present.empty()) {
    status.Update(CheckSize(spec, "memory for present rows", pull.present.size(), pull.ids.size()));
  }
  if (!status.ok()) return status;
  return std::make_shared<const TableRows>(
      TableRows{spec.id(), spec.dim(), RowEncoding(encoding), pull, {}, RowOrder(spec.id(), pull.ids)});
}

absl::StatusOr<std::shared_ptr<const TableRows>> OrderRows(const v1::TableSpec& spec, const RowPush& push,
                                                           v1::Encoding encoding) {
  absl::Status status = CheckCount(spec, push.ids.size());
  status.Update(CheckSize(spec, "gradients", push.gradients.size(), push.ids.size() * spec.dim()));
  if (!push.versions.empty()) status.Update(CheckSize(spec, "versions", push.versions.size(), push.ids.size()));
  if (!push.uses.empty()) status.Update(CheckSize(spec, "uses", push.uses.size(), push.ids.size()));
  if (!status.ok()) return status;
  return std::make_shared<const TableRows>(TableRows{
      spec.id(), spec.dim(), RowEncoding(encoding), {}, push, RowOrder(spec.id(), push.ids), CountsUses(spec)});
}

void SplitByShard(const PlacedTable& placed, std::shared_ptr<const TableRows> rows,
                  std::vector<std::vector<RowRun>>& by_shard) {
  const uint32_t range_bits = RangeBits(placed.spec);
  size_t begin = 0;
  for (const RangeSpan& span : placed.spans) {
    const uint64_t next = uint64_t{span.first} + span.count;
    const bool last = next == uint64_t{1} << range_bits;
    const size_t end = last ? rows->order.size() : rows->order.CountBelow(next << (64 - range_bits));
    if (end > begin) by_shard[span.shard].push_back({rows, begin, end, span.shard});
    begin = end;
  }
}

std::vector<std::vector<RowRun>> PackRows(absl::Span<const RowRun> runs, uint64_t max_bytes) {
  std::vector<std::vector<RowRun>> messages;
  uint64_t bytes = max_bytes;
  for (RowRun run : runs) {
    const uint64_t row_bytes = run.table->RowBytes();
    while (run.size() > 0) {
      const bool repeated = !messages.empty() && !messages.back().empty() &&
                            messages.back().back().table->table_id == run.table->table_id;
      if (repeated || bytes + kItemOverheadBytes + row_bytes > max_bytes) {
        messages.emplace_back();
        bytes = kMessageOverheadBytes;
      }
      // A message has at least one row.
      const uint64_t room = max_bytes - std::min(max_bytes, bytes + kItemOverheadBytes);
      const size_t rows = std::min<uint64_t>(run.size(), std::max<uint64_t>(room / row_bytes, 1));
      messages.back().push_back({run.table, run.begin, run.begin + rows, run.shard});
      bytes += kItemOverheadBytes + rows * row_bytes;
      run.begin += rows;
    }
  }
  return messages;
}

RowPayload EncodeRun(const RowRun& run) {
  const TableRows& rows = *run.table;
  RowPayload payload;
  payload.item.set_table_id(rows.table_id);
  payload.item.set_ids(Ids(run, rows.push.ids));
  if (!rows.push.versions.empty()) payload.item.set_versions(Versions(run));
  if (rows.counts_uses) payload.item.set_uses(Uses(run));
  if (rows.push.clocks != nullptr) {
    const std::optional<uint64_t> clock = rows.push.clocks->Find(rows.table_id, run.shard);
    if (clock.has_value()) payload.item.set_clock(*clock);
  }
  payload.item.set_encoding(rows.encoding);
  payload.bytes = grpc::Slice(run.size() * rows.PayloadBytes());
  // The cast is safe, because the slice is not shared yet.
  char* out = reinterpret_cast<char*>(const_cast<uint8_t*>(payload.bytes.begin()));
  if (SendsFloats(rows.encoding) && reinterpret_cast<uintptr_t>(out) % alignof(float) == 0) {
    Gather(rows, run.begin, run.end, reinterpret_cast<float*>(out));
    return payload;
  }
  const Codec& codec = **FindCodec(rows.encoding);
  const size_t block = RowsPerBlock(rows.dim);
  std::vector<float> gradients(block * rows.dim);
  for (size_t begin = run.begin; begin < run.end; begin += block) {
    const size_t end = std::min(begin + block, run.end);
    Gather(rows, begin, end, gradients.data());
    out += codec.Encode(absl::MakeSpan(gradients).first((end - begin) * rows.dim), 0, out);
  }
  return payload;
}

grpc::ByteBuffer EncodeRowGradients(const v1::PushRowsRequest& envelope, absl::Span<const RowPayload> payloads) {
  PayloadMessageWriter writer(envelope);
  for (const RowPayload& payload : payloads) {
    writer.Add(v1::PushRowsRequest::kGradientsFieldNumber, payload.item, payload.bytes);
  }
  return writer.Finish();
}

void AddQueries(absl::Span<const RowRun> runs, v1::PullRowsRequest* request) {
  for (const RowRun& run : runs) {
    const RowPull& pull = run.table->pull;
    v1::RowQuery* const query = request->add_queries();
    query->set_table_id(run.table->table_id);
    query->set_ids(Ids(run, pull.ids));
    query->set_with_versions(!pull.versions.empty());
    query->set_missing(pull.missing);
  }
}

absl::StatusOr<RowClocks> DecodeRows(absl::Span<const ItemWithPayload<v1::RowValues>> response,
                                     absl::Span<const RowRun> runs) {
  if (response.size() != runs.size()) {
    return absl::InternalError(absl::StrCat("response has ", response.size(), " tables, want ", runs.size()));
  }
  std::vector<std::unique_ptr<PayloadDecoder>> payloads;
  for (size_t i = 0; i < runs.size(); ++i) {
    absl::StatusOr<std::unique_ptr<PayloadDecoder>> payload = Open(response[i], runs[i]);
    if (!payload.ok()) return payload.status();
    payloads.push_back(*std::move(payload));
  }
  RowClocks clocks;
  std::vector<float> values;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RowRun& run = runs[i];
    const TableRows& rows = *run.table;
    if (SendsFloats(response[i].item.encoding()) && response[i].payload.size() == 1) {
      Scatter(rows, run.begin, run.end, response[i].payload[0].data());
    } else {
      const size_t block = RowsPerBlock(rows.dim);
      values.resize(block * rows.dim);
      for (size_t begin = run.begin; begin < run.end; begin += block) {
        const size_t end = std::min(begin + block, run.end);
        payloads[i]->Next(absl::MakeSpan(values).first((end - begin) * rows.dim));
        Scatter(rows, begin, end, reinterpret_cast<const char*>(values.data()));
      }
    }
    if (!rows.pull.versions.empty() || !rows.pull.present.empty()) ScatterState(response[i].item, run);
    if (response[i].item.has_clock()) clocks.Add(rows.table_id, run.shard, response[i].item.clock());
  }
  return clocks;
}

}  // namespace ballast
