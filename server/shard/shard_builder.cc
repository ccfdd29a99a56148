// SPDX-License-Identifier: Apache-2.0
#include "server/shard/shard_builder.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {

absl::StatusOr<ShardBuilder> ShardBuilder::Begin(uint32_t shard, uint64_t max_bytes, JobConfig job,
                                                 std::vector<OwnedTensor> tensors, TableBuilder tables) {
  if (absl::Status status = ValidateJobConfig(job); !status.ok()) return status;
  ShardBuilder builder(BuiltShard{std::move(job), TensorCatalog(shard, max_bytes), {}, {}}, std::move(tables));
  if (absl::Status status = builder.Declare(std::move(tensors), {}); !status.ok()) return status;
  return builder;
}

absl::Status ShardBuilder::Declare(std::vector<OwnedTensor> tensors, absl::Span<const OwnedTable> tables) {
  if (absl::Status status = tables_.Declare(tables); !status.ok()) return status;
  absl::StatusOr<TensorCatalog::Addition> addition = built_.catalog.Check(tensors);
  if (!addition.ok()) return addition.status();
  built_.catalog.Add(*std::move(addition));
  return absl::OkStatus();
}

absl::Status ShardBuilder::Add(ShardState::SliceEntry slice, uint64_t captured_at) {
  const SliceKey key = slice.key;
  absl::Status status = built_.catalog.Insert(key, {std::move(slice.weights), std::move(slice.policy)},
                                              built_.job.policy, built_.job.workers);
  if (status.ok()) captured_at_[key] = captured_at;
  return status;
}

bool ShardBuilder::Lacks(const SliceKey& key, uint64_t position) const {
  const auto captured_at = captured_at_.find(key);
  return captured_at != captured_at_.end() && captured_at->second < position;
}

absl::Status ShardBuilder::CheckWorker(uint32_t worker) const {
  if (worker < built_.job.workers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("worker: got rank ", worker, ", want below the job's ", built_.job.workers, " workers"));
}

absl::Status ShardBuilder::Offer(const PushTicket& push, const GradientView& view) {
  const absl::StatusOr<Slice*> slice = built_.catalog.Find(view.key);
  if (!slice.ok()) return slice.status();
  Gradient gradient;
  if (!view.payload.empty() || push.examples > 0) {
    const absl::StatusOr<const Codec*> codec = FindCodec(view.encoding);
    if (!codec.ok()) return codec.status();
    absl::StatusOr<Gradient> opened = Gradient::Open(**codec, view.payload, (*slice)->range().elements());
    if (!opened.ok()) return opened.status();
    gradient = *std::move(opened);
  }
  if (absl::Status status = (*slice)->CheckStep(push.step); !status.ok()) return status;
  (*slice)->Offer(push, view.version, gradient, std::nullopt);
  return absl::OkStatus();
}

absl::Status ShardBuilder::Push(const PushTicket& push, absl::Span<const GradientView> gradients) {
  if (absl::Status status = CheckWorker(push.worker); !status.ok()) return status;
  for (const GradientView& gradient : gradients) {
    if (absl::Status status = Offer(push, gradient); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ShardBuilder::SetValues(uint64_t position, absl::Span<const ValueView> values) {
  for (const ValueView& view : values) {
    if (!Lacks(view.key, position)) continue;
    const absl::StatusOr<Slice*> slice = built_.catalog.Find(view.key);
    if (!slice.ok()) return slice.status();
    absl::StatusOr<DecodedValues> decoded =
        DecodeValues(view, (*slice)->range().elements(), built_.job.policy.accept_non_finite());
    if (!decoded.ok()) return decoded.status();
    (*slice)->SetValues(std::move(decoded->values), decoded->checksum);
  }
  return absl::OkStatus();
}

absl::Status ShardBuilder::Pause(uint64_t position, uint32_t worker) {
  if (absl::Status status = CheckWorker(worker); !status.ok()) return status;
  for (const auto& [key, slice] : built_.catalog.Slices()) {
    if (Lacks(key, position)) slice->Pause(worker, std::nullopt);
  }
  tables_.Pause(position, worker);
  return absl::OkStatus();
}

absl::Status ShardBuilder::PushRows(uint64_t position, const PushTicket& push, uint32_t messages_of_step,
                                    absl::Span<const RowGradientsView> gradients) {
  if (absl::Status status = CheckWorker(push.worker); !status.ok()) return status;
  return tables_.Push(position, push, messages_of_step, gradients, built_.job.policy.accept_non_finite());
}

absl::StatusOr<BuiltShard> ShardBuilder::Finish(std::vector<internal::v1::WindowState> windows) && {
  if (built_.catalog.slice_count() != built_.catalog.declared_slices()) {
    return absl::InvalidArgumentError(
        absl::StrCat("slices: got ", built_.catalog.slice_count(), ", want ", built_.catalog.declared_slices()));
  }
  if (windows.size() > built_.job.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("windows: got ", windows.size(), ", want at most ", built_.job.workers));
  }
  absl::StatusOr<ShardTables::Addition> tables = std::move(tables_).Finish();
  if (!tables.ok()) return tables.status();
  built_.tables = *std::move(tables);
  built_.windows = std::move(windows);
  return std::move(built_);
}

}  // namespace ballast
