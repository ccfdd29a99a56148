// SPDX-License-Identifier: Apache-2.0
#include "common/status/error_reason.h"

#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"

namespace ballast {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kDomain[] = "ballast.v1";
constexpr absl::string_view kPrefix = "ERROR_REASON_";

std::string NameOf(v1::ErrorReason reason) {
  return std::string(absl::StripPrefix(v1::ErrorReason_Name(reason), kPrefix));
}

std::optional<v1::ErrorInfo> InfoOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrorInfoUrl);
  v1::ErrorInfo info;
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) return std::nullopt;
  return info;
}

v1::ErrorReason ReasonOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return v1::ERROR_REASON_INVALID_REQUEST;
    case absl::StatusCode::kNotFound:
      return v1::ERROR_REASON_UNKNOWN_TENSOR;
    case absl::StatusCode::kAlreadyExists:
      return v1::ERROR_REASON_RANK_TAKEN;
    case absl::StatusCode::kDeadlineExceeded:
      return v1::ERROR_REASON_UNREACHABLE;
    case absl::StatusCode::kResourceExhausted:
      return v1::ERROR_REASON_BYTES_IN_FLIGHT;
    case absl::StatusCode::kAborted:
      return v1::ERROR_REASON_JOB_FAILED;
    case absl::StatusCode::kUnavailable:
      return v1::ERROR_REASON_UNREACHABLE;
    case absl::StatusCode::kDataLoss:
      return v1::ERROR_REASON_STORAGE_FAILED;
    case absl::StatusCode::kCancelled:
      return v1::ERROR_REASON_CANCELLED;
    case absl::StatusCode::kUnauthenticated:
      return v1::ERROR_REASON_NO_TOKEN;
    case absl::StatusCode::kPermissionDenied:
      return v1::ERROR_REASON_TOKEN_FORBIDS;
    case absl::StatusCode::kUnimplemented:
      return v1::ERROR_REASON_UNKNOWN_METHOD;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return v1::ERROR_REASON_INTERNAL;
    default:
      return v1::ERROR_REASON_UNSPECIFIED;
  }
}

void SetInfo(const v1::ErrorInfo& info, absl::Status& status) {
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
}

}  // namespace

absl::Status WithReason(v1::ErrorReason reason, const absl::Status& status,
                        std::initializer_list<ErrorSubject> subjects) {
  if (status.ok()) return status;
  v1::ErrorInfo info = InfoOf(status).value_or(v1::ErrorInfo());
  if (info.reason().empty() && reason != v1::ERROR_REASON_UNSPECIFIED) info.set_reason(NameOf(reason));
  info.set_domain(kDomain);
  for (const auto& [name, value] : subjects) (*info.mutable_metadata())[std::string(name)] = std::string(value);
  absl::Status reasoned = status;
  SetInfo(info, reasoned);
  return reasoned;
}

absl::Status WithSubjects(const absl::Status& status, std::initializer_list<ErrorSubject> subjects) {
  return WithReason(v1::ERROR_REASON_UNSPECIFIED, status, subjects);
}

v1::ErrorReason ReasonOf(const absl::Status& status) {
  const std::optional<v1::ErrorInfo> info = InfoOf(status);
  if (!info.has_value() || info->domain() != kDomain || info->reason().empty()) return ReasonOfCode(status.code());
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  v1::ErrorReason_Parse(absl::StrCat(kPrefix, info->reason()), &reason);
  return reason;
}

std::string SubjectOf(const absl::Status& status, absl::string_view name) {
  const std::optional<v1::ErrorInfo> info = InfoOf(status);
  if (!info.has_value()) return "";
  const auto found = info->metadata().find(std::string(name));
  return found == info->metadata().end() ? "" : found->second;
}

std::map<std::string, std::string> SubjectsOf(const absl::Status& status) {
  const std::optional<v1::ErrorInfo> info = InfoOf(status);
  if (!info.has_value()) return {};
  return {info->metadata().begin(), info->metadata().end()};
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  return WithMessage(status, absl::StrCat(context, ": ", status.message()));
}

absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  absl::Status changed(status.code(), message);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { changed.SetPayload(url, payload); });
  return changed;
}

std::string EncodeErrorDetails(const absl::Status& status) {
  v1::ErrorInfo info = InfoOf(status).value_or(v1::ErrorInfo());
  if (info.reason().empty()) info.set_reason(NameOf(ReasonOf(status)));
  info.set_domain(kDomain);
  v1::ErrorStatus details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  google::protobuf::Any* const detail = details.add_details();
  detail->set_type_url(kErrorInfoUrl);
  detail->set_value(info.SerializeAsString());
  return details.SerializeAsString();
}

absl::Status DecodeErrorDetails(const absl::Status& status, absl::string_view details) {
  v1::ErrorStatus decoded;
  if (status.ok() || !decoded.ParseFromArray(details.data(), static_cast<int>(details.size()))) return status;
  for (const google::protobuf::Any& detail : decoded.details()) {
    v1::ErrorInfo info;
    if (detail.type_url() != kErrorInfoUrl || !info.ParseFromString(detail.value())) continue;
    absl::Status reasoned = status;
    SetInfo(info, reasoned);
    return reasoned;
  }
  return status;
}

}  // namespace ballast
