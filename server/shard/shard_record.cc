// SPDX-License-Identifier: Apache-2.0
#include "server/shard/shard_record.h"

#include "common/codecs/payload_reader.h"

namespace ballast {

JournalEntry EncodePush(const PushTicket& push, absl::Span<const GradientView> gradients) {
  JournalEntry entry;
  entry.parts = gradients.size();
  internal::v1::LoggedPush* const logged = entry.record.mutable_push();
  logged->set_worker(push.worker);
  logged->set_incarnation(push.incarnation);
  logged->set_sequence(push.sequence);
  logged->set_step(push.step);
  logged->set_examples(push.examples);
  if (push.schedule_position.has_value()) logged->set_schedule_position(*push.schedule_position);
  for (const GradientView& gradient : gradients) {
    internal::v1::LoggedPush::Gradient* const to = logged->add_gradients();
    to->set_tensor_id(gradient.key.tensor_id);
    to->set_slice_index(gradient.key.slice_index);
    to->set_version(gradient.version);
    to->set_encoding(gradient.encoding);
    to->set_bytes(PayloadBytes(gradient.payload));
    entry.payloads.insert(entry.payloads.end(), gradient.payload.begin(), gradient.payload.end());
  }
  return entry;
}

JournalEntry EncodeRows(const PushTicket& push, uint32_t messages_of_step, absl::Span<const RowGradientsView> gradients,
                        size_t parts) {
  JournalEntry entry;
  entry.parts = parts;
  internal::v1::LoggedRows* const logged = entry.record.mutable_rows();
  logged->set_worker(push.worker);
  logged->set_incarnation(push.incarnation);
  logged->set_sequence(push.sequence);
  logged->set_step(push.step);
  logged->set_examples(push.examples);
  if (push.schedule_position.has_value()) logged->set_schedule_position(*push.schedule_position);
  logged->set_messages_of_step(messages_of_step);
  logged->set_unix_seconds(push.unix_seconds);
  for (const RowGradientsView& view : gradients) {
    internal::v1::LoggedRows::Table* const to = logged->add_tables();
    to->set_table_id(view.table_id);
    to->set_rows(view.ids.size() / sizeof(uint64_t));
    to->set_unordered(view.unordered);
    to->set_versions(!view.versions.empty());
    to->set_uses(!view.uses.empty());
    to->set_encoding(view.encoding);
    if (view.clock.has_value()) to->set_clock(*view.clock);
    to->set_bytes(PayloadBytes(view.payload));
    entry.payloads.push_back(view.ids);
    entry.payloads.push_back(view.versions);
    entry.payloads.push_back(view.uses);
    entry.payloads.insert(entry.payloads.end(), view.payload.begin(), view.payload.end());
  }
  return entry;
}

JournalEntry EncodeValues(absl::Span<const ValueView> values, absl::Span<const size_t> indices) {
  JournalEntry entry;
  internal::v1::LoggedValues* const logged = entry.record.mutable_values();
  for (size_t i : indices) {
    const ValueView& view = values[i];
    internal::v1::LoggedValues::Slice* const to = logged->add_slices();
    to->set_tensor_id(view.key.tensor_id);
    to->set_slice_index(view.key.slice_index);
    to->set_encoding(view.encoding);
    to->set_bytes(PayloadBytes(view.payload));
    entry.payloads.insert(entry.payloads.end(), view.payload.begin(), view.payload.end());
  }
  return entry;
}

JournalEntry EncodePause(uint32_t worker, uint64_t incarnation, size_t slices) {
  JournalEntry entry;
  entry.parts = slices;
  entry.record.mutable_pause()->set_worker(worker);
  entry.record.mutable_pause()->set_incarnation(incarnation);
  return entry;
}

JournalEntry EncodeCatchUp(uint32_t worker, uint64_t incarnation, absl::Span<const SeenSlice> seen,
                           const SeenSteps& rows) {
  JournalEntry entry;
  internal::v1::LoggedCatchUp* const logged = entry.record.mutable_catch_up();
  logged->set_worker(worker);
  logged->set_incarnation(incarnation);
  for (const SeenSlice& slice : seen) {
    internal::v1::LoggedCatchUp::Slice* const to = logged->add_slices();
    to->set_tensor_id(slice.key.tensor_id);
    to->set_slice_index(slice.key.slice_index);
    to->set_version(slice.version);
    to->set_finished_steps(slice.finished_steps);
  }
  logged->set_ended_steps(rows.ended);
  logged->set_applied_steps(rows.applied);
  return entry;
}

internal::v1::LoggedDeclaration EncodeDeclaration(const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                                                  absl::Span<const OwnedTable> tables, const std::string& checkpoint) {
  internal::v1::LoggedDeclaration declaration;
  declaration.set_job(job.name);
  declaration.set_checkpoint(checkpoint);
  *declaration.mutable_policy() = job.policy;
  declaration.set_workers(job.workers);
  *declaration.mutable_durability() = job.durability;
  for (const OwnedTensor& tensor : tensors) {
    internal::v1::LoggedDeclaration::Tensor* to = declaration.add_tensors();
    *to->mutable_spec() = tensor.spec;
    to->mutable_slices()->Add(tensor.slices.begin(), tensor.slices.end());
  }
  for (const OwnedTable& table : tables) {
    v1::PlacedTable* const to = declaration.add_tables();
    *to->mutable_spec() = table.spec;
    to->mutable_spans()->Add(table.spans.begin(), table.spans.end());
  }
  return declaration;
}

JobConfig DecodeJobConfig(const internal::v1::LoggedDeclaration& declaration) {
  return {declaration.job(), declaration.policy(), declaration.workers(), declaration.durability()};
}

std::vector<OwnedTensor> DecodeTensors(const internal::v1::LoggedDeclaration& declaration) {
  std::vector<OwnedTensor> tensors;
  tensors.reserve(declaration.tensors_size());
  for (const internal::v1::LoggedDeclaration::Tensor& tensor : declaration.tensors()) {
    tensors.push_back({tensor.spec(), {tensor.slices().begin(), tensor.slices().end()}});
  }
  return tensors;
}

std::vector<OwnedTable> DecodeTables(const internal::v1::LoggedDeclaration& declaration) {
  std::vector<OwnedTable> tables;
  for (const v1::PlacedTable& table : declaration.tables()) {
    tables.push_back({table.spec(), {table.spans().begin(), table.spans().end()}});
  }
  return tables;
}

}  // namespace ballast
