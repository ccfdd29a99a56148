// SPDX-License-Identifier: Apache-2.0
// First values of a ParameterShard's slices, set by clients.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codecs/payload_reader.h"
#include "common/status/error_reason.h"
#include "server/shard/parameter_shard.h"

namespace ballast {
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
  if (absl::Status status = job_.closed(); !status.ok()) return status;
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
  absl::StatusOr<std::vector<CheckedValues>> checked = job_.CheckValues(job, values);
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
