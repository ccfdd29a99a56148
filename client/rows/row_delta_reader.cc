// SPDX-License-Identifier: Apache-2.0
#include "client/rows/row_delta_reader.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/codecs/codec.h"
#include "common/tables/row_chain.h"
#include "common/tables/row_hash.h"
#include "common/tables/table_spec.h"

namespace ballast {
namespace {

constexpr size_t kIdBytes = sizeof(uint64_t);

uint64_t IdAt(const std::string& ids, size_t at) {
  uint64_t id = 0;
  std::memcpy(&id, ids.data() + at * kIdBytes, kIdBytes);
  return id;
}

absl::Status Wrong(const v1::RowDelta& delta, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("table ", delta.table_id(), ": delta of range ", delta.range(), " from ",
                                          delta.from_position(), " to ", delta.to_position(), ": ", what));
}

}  // namespace

RowDeltaReader::RowDeltaReader(const v1::TableSpec& spec, uint32_t first, uint32_t count)
    : table_id_(spec.id()),
      dim_(spec.dim()),
      range_bits_(static_cast<int>(RangeBits(spec))),
      first_(first),
      ranges_(count) {}

absl::Status RowDeltaReader::Check(const v1::RowDelta& delta, const Range& range) const {
  if (delta.to_position() <= delta.from_position()) return Wrong(delta, "want a later position than the one before");
  uint64_t before = 0;
  if (range.parts.has_value()) {
    const uint64_t from = range.parts->replaces ? 0 : range.position;
    if (delta.from_position() != from || delta.to_position() != range.to_position) {
      return Wrong(delta, absl::StrCat("want the next part of the one from ", from, " to ", range.to_position));
    }
    before = range.parts_chain;
  } else if (delta.from_position() != 0) {
    if (range.position != delta.from_position()) {
      return Wrong(delta, absl::StrCat("want one from ", range.position, ", where the copy is"));
    }
    before = range.chain;
  }
  const uint64_t chain = NextRowChain(before, delta.ids(), delta.evicted(), delta.payload());
  if (chain == delta.chain()) return absl::OkStatus();
  return Wrong(delta, absl::StrCat("got chain ", absl::Hex(delta.chain()), ", want ", absl::Hex(chain)));
}

absl::Status RowDeltaReader::AddIds(const v1::RowDelta& delta, RangeUpdate& to) const {
  if (delta.ids().size() % kIdBytes != 0 || delta.evicted().size() % kIdBytes != 0) {
    return Wrong(delta, absl::StrCat("got ", delta.ids().size(), " and ", delta.evicted().size(),
                                     " bytes of ids, want 8 for each"));
  }
  const auto outside = [&](uint64_t hash) { return RangeOf(hash, range_bits_) != delta.range(); };
  std::optional<uint64_t> last;
  if (!to.ids.empty()) last = RowHash(to.ids.back(), table_id_);
  for (size_t i = 0; i < delta.ids().size() / kIdBytes; ++i) {
    const uint64_t id = IdAt(delta.ids(), i);
    const uint64_t hash = RowHash(id, table_id_);
    if (outside(hash)) return Wrong(delta, absl::StrCat("id ", id, " is not in the range"));
    if (last.has_value() && hash <= *last)
      return Wrong(delta, absl::StrCat("id ", id, " is not in the order of hashes"));
    last = hash;
    to.ids.push_back(id);
  }
  for (size_t i = 0; i < delta.evicted().size() / kIdBytes; ++i) {
    const uint64_t id = IdAt(delta.evicted(), i);
    if (outside(RowHash(id, table_id_))) return Wrong(delta, absl::StrCat("evicted id ", id, " is not in the range"));
    to.evicted.push_back(id);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RangeUpdate>> RowDeltaReader::Take(const v1::RowDelta& delta) {
  if (delta.table_id() != table_id_ || delta.range() < first_ || delta.range() - first_ >= ranges_.size()) {
    return Wrong(delta, absl::StrCat("want ranges ", first_, " to ", uint64_t{first_} + ranges_.size() - 1,
                                     " of table ", table_id_));
  }
  Range& range = ranges_[delta.range() - first_];
  // Until the delta is found to be right, the range has no position.
  const auto lose = [&](const absl::Status& status) {
    const bool received = range.received;
    range = Range();
    range.received = received;
    return status;
  };
  // The range may be sent whole at any time.
  if (delta.from_position() == 0 && range.parts.has_value() && !range.parts->replaces) range.parts.reset();
  if (absl::Status status = Check(delta, range); !status.ok()) return lose(status);
  const absl::StatusOr<const Codec*> codec =
      FindCodec(delta.encoding() == v1::ENCODING_UNSPECIFIED ? v1::ENCODING_FP32 : delta.encoding());
  if (!codec.ok() || (*codec)->encoding() > v1::ENCODING_BF16) {
    return lose(Wrong(delta, absl::StrCat("got encoding ", delta.encoding(), ", want fp32, fp16 or bf16")));
  }
  if (!range.parts.has_value()) {
    range.parts.emplace();
    range.parts->table_id = table_id_;
    range.parts->range = delta.range();
    range.parts->replaces = delta.from_position() == 0;
    range.to_position = delta.to_position();
  }
  RangeUpdate& update = *range.parts;
  const size_t before = update.ids.size();
  if (absl::Status status = AddIds(delta, update); !status.ok()) return lose(status);
  const absl::string_view payload = delta.payload();
  const size_t elements = (update.ids.size() - before) * dim_;
  absl::StatusOr<std::unique_ptr<PayloadDecoder>> decoder =
      (*codec)->OpenPayload(absl::MakeConstSpan(&payload, 1), elements);
  if (!decoder.ok()) return lose(Wrong(delta, decoder.status().message()));
  const size_t values = update.values.size();
  update.values.resize(values + elements);
  (*decoder)->Next(absl::MakeSpan(update.values).subspan(values));
  range.parts_chain = delta.chain();
  if (delta.continues()) return std::nullopt;
  range.position = delta.to_position();
  range.chain = delta.chain();
  if (!std::exchange(range.received, true)) ++received_;
  std::optional<RangeUpdate> complete = std::move(range.parts);
  range.parts.reset();
  return complete;
}

void RowDeltaReader::EndStream() {
  for (Range& range : ranges_) range.parts.reset();
}

std::vector<v1::RangePosition> RowDeltaReader::positions() const {
  std::vector<v1::RangePosition> positions;
  for (uint32_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].position == 0) continue;
    v1::RangePosition& position = positions.emplace_back();
    position.set_table_id(table_id_);
    position.set_range(first_ + i);
    position.set_position(ranges_[i].position);
    position.set_chain(ranges_[i].chain);
  }
  return positions;
}

}  // namespace ballast
