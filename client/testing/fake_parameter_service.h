// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "client/testing/fake_rows.h"
#include "common/codecs/codec.h"

namespace ballast {

// A fake shard: starts with zeros, subtracts gradients, records requests, and fails, blocks or sends damaged responses
// on request. Thread safety: all methods may be called from any thread.
class FakeParameterService : public v1::ParameterService::Service {
 public:
  ~FakeParameterService() override { Release(); }

  // Fails the next `count` data calls with `status`.
  void FailNext(int count, grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    failures_ = count;
    failure_ = status;
  }
  // Marks every later push as a duplicate.
  void AnswerAsDuplicates() {
    absl::MutexLock lock(&mutex_);
    duplicates_ = true;
  }
  // Blocks pulls, and pushes with these sequence numbers, until Release, for at most 1 min.
  void Block(std::vector<uint64_t> sequences = {}) {
    absl::MutexLock lock(&mutex_);
    blocked_ = true;
    blocked_sequences_ = std::move(sequences);
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    blocked_ = false;
  }
  // Blocks for at most 1 min until that many calls are blocked at once; returns whether they are.
  bool AwaitBlocked(int count) {
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ >= count; });
  }
  // Blocks for at most 1 min until that many pushes have come in all; returns whether they have.
  bool AwaitPushes(size_t count) {
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return sequences_.size() >= count; });
  }
  // Cuts the last byte off every later payload.
  void SpoilAnswers() {
    absl::MutexLock lock(&mutex_);
    spoil_ = true;
  }

  // Applies the next `count` pushes of rows, then answers them with UNAVAILABLE, as if the response were lost. A retry
  // is answered as a duplicate.
  void LoseRowResponses(int count) {
    absl::MutexLock lock(&mutex_);
    lost_responses_ = count;
  }

  // The tables of the pushes and pulls of rows that succeeded, in order of arrival.
  std::vector<FakeRows::Batch> row_pushes() const { return Get(&FakeParameterService::rows_).pushes(); }
  std::vector<FakeRows::Batch> row_pulls() const { return Get(&FakeParameterService::rows_).pulls(); }
  // Requests of PushRows as received, with failed attempts.
  std::vector<v1::PushRowsRequest> row_requests() const { return Get(&FakeParameterService::row_requests_); }

  std::vector<uint64_t> sequences() const { return Get(&FakeParameterService::sequences_); }
  std::vector<uint64_t> versions_sent() const { return Get(&FakeParameterService::versions_sent_); }
  std::vector<v1::DeclareTensorsRequest> declarations() const { return Get(&FakeParameterService::declarations_); }
  // Blocks for at most 1 min until clients have reported versions so many times; returns that report.
  v1::ReportVersionsRequest AwaitReport(size_t count = 1) {
    const bool reported = Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reports_.size() >= count; });
    return reported ? Get(&FakeParameterService::reports_)[count - 1] : v1::ReportVersionsRequest();
  }
  size_t reports() const { return Get(&FakeParameterService::reports_).size(); }
  // Time from the last declaration's arrival to its deadline.
  absl::Duration declaration_time() const { return Get(&FakeParameterService::declaration_time_); }
  v1::PushHeader last_header() const { return Get(&FakeParameterService::last_header_); }
  // Total over all gradients.
  size_t payload_bytes() const { return Get(&FakeParameterService::payload_bytes_); }
  uint32_t last_wait_ms() const { return Get(&FakeParameterService::last_wait_ms_); }
  size_t largest_message() const { return Get(&FakeParameterService::largest_message_); }
  int most_blocked() const { return Get(&FakeParameterService::most_waiting_); }

  // `context` may be null.
  grpc::Status DeclareTensors(grpc::ServerContext* context, const v1::DeclareTensorsRequest* request,
                              v1::DeclareTensorsResponse*) override {
    absl::MutexLock lock(&mutex_);
    if (context != nullptr) declaration_time_ = absl::FromChrono(context->deadline()) - absl::Now();
    declarations_.push_back(*request);
    for (const v1::PlacedTable& table : request->tables()) rows_.Declare(table.spec());
    for (const v1::TensorDeclaration& tensor : request->tensors()) {
      for (const v1::SliceRange& slice : tensor.slices()) {
        slices_[{tensor.spec().id(), slice.index()}].values.resize(slice.elements());
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status Push(grpc::ServerContext*, const v1::PushRequest* request, v1::PushResponse* response) override {
    absl::MutexLock lock(&mutex_);
    largest_message_ = std::max(largest_message_, request->ByteSizeLong());
    return TakeLocked(request->header(), request->gradients(), response->mutable_outcome());
  }

  grpc::Status Pull(grpc::ServerContext*, const v1::PullRequest* request, v1::PullResponse* response) override {
    absl::MutexLock lock(&mutex_);
    last_wait_ms_ = request->wait_ms();
    BlockLocked();
    if (failures_ > 0 && failures_-- > 0) return failure_;
    for (const v1::SliceRef& ref : request->slices()) {
      AnswerLocked(ref.tensor_id(), ref.slice_index(), request->encoding(), response->add_values());
    }
    largest_message_ = std::max(largest_message_, response->ByteSizeLong());
    return grpc::Status::OK;
  }

  grpc::Status PushPull(grpc::ServerContext*, const v1::PushPullRequest* request,
                        v1::PushPullResponse* response) override {
    absl::MutexLock lock(&mutex_);
    last_wait_ms_ = request->wait_ms();
    const grpc::Status status = TakeLocked(request->header(), request->gradients(), response->mutable_outcome());
    if (!status.ok()) return status;
    BlockLocked();
    for (const v1::SliceGradient& gradient : request->gradients()) {
      AnswerLocked(gradient.tensor_id(), gradient.slice_index(), request->encoding(), response->add_values());
    }
    return grpc::Status::OK;
  }

  grpc::Status PushRows(grpc::ServerContext*, const v1::PushRowsRequest* request,
                        v1::PushRowsResponse* response) override {
    absl::MutexLock lock(&mutex_);
    const v1::PushHeader& header = request->header();
    largest_message_ = std::max(largest_message_, request->ByteSizeLong());
    row_requests_.push_back(*request);
    sequences_.push_back(header.sequence());
    last_header_ = header;
    if (std::count(blocked_sequences_.begin(), blocked_sequences_.end(), header.sequence()) > 0) BlockLocked();
    if (failures_ > 0 && failures_-- > 0) return failure_;
    if (const auto known = row_outcomes_.find(header.sequence()); known != row_outcomes_.end()) {
      *response->mutable_outcome() = known->second;
      response->mutable_outcome()->set_duplicate(true);
      return grpc::Status::OK;
    }
    for (const v1::RowGradients& gradients : request->gradients()) {
      if (!rows_.Push(gradients, *response->mutable_outcome())) return BadRows();
    }
    row_outcomes_[header.sequence()] = response->outcome();
    if (lost_responses_ > 0 && lost_responses_-- > 0) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost");
    return grpc::Status::OK;
  }

  grpc::Status PullRows(grpc::ServerContext*, const v1::PullRowsRequest* request,
                        v1::PullRowsResponse* response) override {
    absl::MutexLock lock(&mutex_);
    BlockLocked();
    if (failures_ > 0 && failures_-- > 0) return failure_;
    for (const v1::RowQuery& query : request->queries()) {
      v1::RowValues* const values = response->add_values();
      if (!rows_.Pull(query, request->encoding(), *values)) return BadRows();
      if (spoil_) values->mutable_payload()->pop_back();
    }
    largest_message_ = std::max({largest_message_, request->ByteSizeLong(), response->ByteSizeLong()});
    return grpc::Status::OK;
  }

  grpc::Status SetValues(grpc::ServerContext*, const v1::SetValuesRequest* request, v1::SetValuesResponse*) override {
    absl::MutexLock lock(&mutex_);
    for (const v1::SliceValue& value : request->values()) {
      ++slices_[{value.tensor_id(), value.slice_index()}].version;
    }
    return grpc::Status::OK;
  }

  grpc::Status ReportVersions(grpc::ServerContext*, const v1::ReportVersionsRequest* request,
                              v1::ReportVersionsResponse*) override {
    absl::MutexLock lock(&mutex_);
    reports_.push_back(*request);
    return grpc::Status::OK;
  }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*, v1::GetStatusResponse* response) override {
    absl::MutexLock lock(&mutex_);
    response->set_pushes(sequences_.size());
    return grpc::Status::OK;
  }

 private:
  static grpc::Status BadRows() { return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "rows do not fit"); }

  struct Slice {
    std::vector<float> values;
    uint64_t version = 0;
  };

  template <typename Value>
  Value Get(Value FakeParameterService::*field) const {
    absl::MutexLock lock(&mutex_);
    return this->*field;
  }
  template <typename Reached>
  bool Await(const Reached& reached) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Minutes(1));
  }

  void BlockLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++waiting_;
    if (blocked_) most_waiting_ = std::max(most_waiting_, waiting_);
    const auto released = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !blocked_; };
    mutex_.AwaitWithTimeout(absl::Condition(&released), absl::Minutes(1));
    --waiting_;
  }

  grpc::Status TakeLocked(const v1::PushHeader& header,
                          const google::protobuf::RepeatedPtrField<v1::SliceGradient>& gradients,
                          v1::PushOutcome* outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sequences_.push_back(header.sequence());
    last_header_ = header;
    if (std::count(blocked_sequences_.begin(), blocked_sequences_.end(), header.sequence()) > 0) BlockLocked();
    if (failures_ > 0 && failures_-- > 0) return failure_;
    for (const v1::SliceGradient& gradient : gradients) {
      versions_sent_.push_back(gradient.version());
      Slice& slice = slices_[{gradient.tensor_id(), gradient.slice_index()}];
      payload_bytes_ += gradient.payload().size();
      std::vector<float> g(slice.values.size());
      const absl::string_view payload(gradient.payload());
      // A gradient without a payload, or of an undeclared slice, contributes nothing.
      const absl::StatusOr<const Codec*> codec = FindCodec(gradient.encoding());
      if (!codec.ok() || !(*codec)->Decode({&payload, 1}, absl::MakeSpan(g)).ok()) g.assign(g.size(), 0);
      for (size_t i = 0; i < g.size(); ++i) slice.values[i] -= g[i];
      ++slice.version;
    }
    outcome->set_applied(gradients.size());
    outcome->set_learning_rate(1.0f);
    outcome->set_duplicate(duplicates_);
    return grpc::Status::OK;
  }

  void AnswerLocked(uint32_t tensor_id, uint32_t slice_index, v1::Encoding encoding, v1::SliceValue* value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Slice& slice = slices_[{tensor_id, slice_index}];
    value->set_tensor_id(tensor_id);
    value->set_slice_index(slice_index);
    value->set_version(slice.version);
    const Codec& codec = **FindCodec(encoding);
    value->set_encoding(codec.encoding());
    value->mutable_payload()->resize(codec.EncodedBytes(slice.values.size()));
    codec.Encode(slice.values, 0, value->mutable_payload()->data());
    if (spoil_) value->mutable_payload()->pop_back();
  }

  mutable absl::Mutex mutex_;
  std::map<std::pair<uint32_t, uint32_t>, Slice> slices_ ABSL_GUARDED_BY(mutex_);
  FakeRows rows_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::PushRowsRequest> row_requests_ ABSL_GUARDED_BY(mutex_);
  // By sequence number.
  std::map<uint64_t, v1::RowsOutcome> row_outcomes_ ABSL_GUARDED_BY(mutex_);
  int lost_responses_ ABSL_GUARDED_BY(mutex_) = 0;
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool duplicates_ ABSL_GUARDED_BY(mutex_) = false;
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> blocked_sequences_ ABSL_GUARDED_BY(mutex_);
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool spoil_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> sequences_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> versions_sent_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ReportVersionsRequest> reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::DeclareTensorsRequest> declarations_ ABSL_GUARDED_BY(mutex_);
  absl::Duration declaration_time_ ABSL_GUARDED_BY(mutex_);
  v1::PushHeader last_header_ ABSL_GUARDED_BY(mutex_);
  uint32_t last_wait_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t payload_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t largest_message_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ballast
