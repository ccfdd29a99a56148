// SPDX-License-Identifier: Apache-2.0
// First values of a ParameterShard's slices, set by clients.
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/codecs/payload_reader.h"
#include "common/status/error_reason.h"
#include "common/wire/limits.h"
#include "server/shard/decoded_values.h"
#include "server/shard/parameter_shard.h"

namespace ballast {
namespace {

absl::Status Invalid(absl::string_view message) {
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST, absl::InvalidArgumentError(message));
}

}  // namespace

absl::StatusOr<std::vector<ParameterShard::CheckedValues>> ParameterShard::CheckValues(
    absl::string_view job, absl::Span<const ValueView> values) const {
  std::vector<SliceKey> keys;
  keys.reserve(values.size());
  absl::flat_hash_set<SliceKey> seen;
  for (const ValueView& view : values) {
    keys.push_back(view.key);
    if (seen.insert(view.key).second) continue;
    return Invalid(absl::StrCat("shard ", options_.rank, ": values of tensor ", view.key.tensor_id, " slice ",
                                view.key.slice_index, " appear twice in the message"));
  }
  bool accept_non_finite = false;
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (!closed_.ok()) return closed_;
    accept_non_finite = job_.policy.accept_non_finite();
  }
  const absl::StatusOr<std::vector<Slice*>> slices = FindAll(job, keys);
  if (!slices.ok()) return slices.status();
  std::vector<CheckedValues> checked;
  checked.reserve(values.size());
  uint64_t elements = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    Slice* const slice = (*slices)[i];
    elements += slice->range().elements();
    if (elements > kMaxMessageBytes / sizeof(float)) {
      return Invalid(absl::StrCat("shard ", options_.rank, ": a message's slices have more than ",
                                  kMaxMessageBytes / sizeof(float), " elements; send fewer in one message"));
    }
    absl::StatusOr<DecodedValues> decoded = DecodeValues(values[i], slice->range().elements(), accept_non_finite);
    if (!decoded.ok()) {
      return Annotate(decoded.status(), absl::StrCat("shard ", options_.rank, ": values of \"", slice->tensor(),
                                                     "\" slice ", slice->range().index()));
    }
    checked.push_back({slice, std::move(decoded->values), decoded->checksum});
  }
  return checked;
}

absl::StatusOr<uint64_t> ParameterShard::WriteValues(absl::Span<const ValueView> values,
                                                     absl::Span<const size_t> fresh) {
  internal::v1::ShardRecord record;
  internal::v1::LoggedValues* const logged = record.mutable_values();
  std::vector<absl::string_view> payloads;
  for (size_t i : fresh) {
    const ValueView& view = values[i];
    internal::v1::LoggedValues::Slice* const to = logged->add_slices();
    to->set_tensor_id(view.key.tensor_id);
    to->set_slice_index(view.key.slice_index);
    to->set_encoding(view.encoding);
    to->set_bytes(PayloadBytes(view.payload));
    payloads.insert(payloads.end(), view.payload.begin(), view.payload.end());
  }
  return Write(
      record, payloads, [] { return true; }, [] {});
}

absl::StatusOr<SetOutcome> ParameterShard::TakeValues(absl::Span<const ValueView> values,
                                                      std::vector<CheckedValues> checked,
                                                      std::vector<WaitList::Ticket>& released) {
  // Exclusive, so that no push reaches a slice between its check and its change.
  absl::MutexLock gate(&gate_);
  if (absl::Status status = closed(); !status.ok()) return status;
  std::vector<size_t> fresh;
  for (size_t i = 0; i < checked.size(); ++i) {
    const absl::StatusOr<bool> may = checked[i].slice->CheckValues(checked[i].checksum);
    if (!may.ok()) return Annotate(may.status(), absl::StrCat("shard ", options_.rank));
    if (*may) fresh.push_back(i);
  }
  const SetOutcome outcome{static_cast<uint32_t>(fresh.size()), static_cast<uint32_t>(checked.size() - fresh.size())};
  if (fresh.empty()) return outcome;
  if (journal_ != nullptr) {
    if (absl::Status status = WriteValues(values, fresh).status(); !status.ok()) {
      return Annotate(status, absl::StrCat("shard ", options_.rank, ": log"));
    }
  }
  for (size_t i : fresh) {
    const std::vector<WaitList::Ticket> tickets =
        checked[i].slice->SetValues(std::move(checked[i].values), checked[i].checksum);
    released.insert(released.end(), tickets.begin(), tickets.end());
  }
  return outcome;
}

absl::StatusOr<SetOutcome> ParameterShard::SetValues(absl::string_view job, absl::Span<const ValueView> values) {
  absl::StatusOr<std::vector<CheckedValues>> checked = CheckValues(job, values);
  if (!checked.ok()) return checked.status();
  std::vector<WaitList::Ticket> released;
  const absl::StatusOr<SetOutcome> outcome = TakeValues(values, *std::move(checked), released);
  if (released.empty()) return outcome;
  // A pull must not return values that a machine failure could lose, because nobody can set them again. Waits end
  // outside the gate, because their callbacks may take long.
  AwaitSynced([this, released = std::move(released)](const absl::Status& synced) {
    for (WaitList::Ticket ticket : released) {
      if (synced.ok()) {
        waits_.CountDown(ticket);
      } else {
        waits_.End(ticket, synced);
      }
    }
  });
  return outcome;
}

}  // namespace ballast
