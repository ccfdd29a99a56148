// SPDX-License-Identifier: Apache-2.0
#include "common/tensors/declarations.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/job/limits.h"
#include "common/status/error_reason.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

template <typename Spec>
Spec Complete(Spec spec) {
  FillNumbers(spec);
  return spec;
}

const char* KindOf(const v1::TensorSpec&) { return "tensor"; }
const char* KindOf(const v1::TableSpec&) { return "table"; }

template <typename Spec>
std::string NameOf(const Spec& spec) {
  return absl::StrCat(KindOf(spec), " ", spec.id(), " \"", spec.name(), "\"");
}

template <typename Spec>
absl::Status Differs(const Spec& again, absl::string_view how) {
  return WithReason(v1::ERROR_REASON_TENSOR_DIFFERS,
                    absl::FailedPreconditionError(absl::StrCat(NameOf(again), " was declared before as ", how)),
                    {{KindOf(again), again.name()}});
}

template <typename Spec>
absl::Status CheckSame(const Spec& declared, const Spec& again) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  // A constant that one of them leaves out is the same as its default in the other.
  if (differencer.Compare(Complete(declared), Complete(again))) return absl::OkStatus();
  if (!difference.empty() && difference.back() == '\n') difference.pop_back();
  std::replace(difference.begin(), difference.end(), '\n', ';');
  return Differs(again, absl::StrCat("\"", declared.name(), "\" and differs: ", difference));
}

template <typename Declared, typename Spec>
absl::Status Compare(const Declared& declared, const Spec& again) {
  if constexpr (std::is_same_v<Declared, Spec>) {
    return CheckSameSpec(declared, again);
  } else {
    return Differs(again, NameOf(declared));
  }
}

}  // namespace

absl::Status CheckSameSpec(const v1::TensorSpec& declared, const v1::TensorSpec& again) {
  return CheckSame(declared, again);
}

absl::Status CheckSameSpec(const v1::TableSpec& declared, const v1::TableSpec& again) {
  return CheckSame(declared, again);
}

template <typename Spec>
absl::StatusOr<bool> Declarations::AddSpec(const Spec& spec) {
  const auto by_id = by_id_.emplace(spec.id(), &spec);
  const auto by_name = by_name_.emplace(spec.name(), &spec);
  if (by_id.second && by_name.second) return true;
  const Known known = !by_id.second ? by_id.first->second : by_name.first->second;
  absl::Status status = std::visit([&](const auto* declared) { return Compare(*declared, spec); }, known);
  if (!status.ok()) return status;
  return false;
}

absl::StatusOr<bool> Declarations::Add(const v1::TensorSpec& spec) { return AddSpec(spec); }
absl::StatusOr<bool> Declarations::Add(const v1::TableSpec& spec) { return AddSpec(spec); }

}  // namespace ballast
