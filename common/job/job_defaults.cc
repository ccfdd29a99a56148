// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_defaults.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "ballast/v1/limits.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace ballast {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void SetNumber(const FieldDescriptor* field, double number, Message* message) {
  const Reflection* const reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(message, field, static_cast<uint32_t>(number));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(message, field, static_cast<int64_t>(number));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection->SetFloat(message, field, static_cast<float>(number));
    default:
      return;
  }
}

// Sets the numbers whose limits state a default, in this message and those in it.
void FillNumbers(Message* message) {
  const Reflection* const reflection = message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message->GetDescriptor()->field(i);
    double number = 0;
    if (field->is_repeated() || reflection->HasField(*message, field)) continue;
    // "what the input has" is no number.
    if (absl::SimpleAtod(field->options().GetExtension(v1::limits).zero(), &number)) SetNumber(field, number, message);
  }
  std::vector<const FieldDescriptor*> set;
  reflection->ListFields(*message, &set);
  for (const FieldDescriptor* field : set) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    if (!field->is_repeated()) {
      FillNumbers(reflection->MutableMessage(message, field));
      continue;
    }
    for (int j = 0; j < reflection->FieldSize(*message, field); ++j) {
      FillNumbers(reflection->MutableRepeatedMessage(message, field, j));
    }
  }
}

void FillPool(v1::Pool& pool) {
  if (pool.kernel().empty()) return;
  if (pool.stride().empty()) *pool.mutable_stride() = pool.kernel();
  if (pool.padding().empty()) pool.add_padding(0);
}

void FillConv2d(v1::Conv2d* conv2d) {
  if (conv2d->stride().empty()) conv2d->add_stride(1);
  if (conv2d->padding().empty()) conv2d->add_padding(0);
  if (conv2d->initializer().kind_case() == v1::Initializer::KIND_NOT_SET) {
    conv2d->mutable_initializer()->mutable_he_normal();
  }
}

void FillLayer(v1::Layer& layer) {
  if (layer.has_dense() && layer.dense().initializer().kind_case() == v1::Initializer::KIND_NOT_SET) {
    layer.mutable_dense()->mutable_initializer()->mutable_he_normal();
  }
  if (layer.has_conv2d()) FillConv2d(layer.mutable_conv2d());
  if (layer.has_max_pool()) FillPool(*layer.mutable_max_pool());
  if (layer.has_average_pool()) FillPool(*layer.mutable_average_pool());
  if (!layer.has_residual()) return;
  for (v1::Layer& inner : *layer.mutable_residual()->mutable_layers()) FillLayer(inner);
  for (v1::Layer& inner : *layer.mutable_residual()->mutable_shortcut()) FillLayer(inner);
}

}  // namespace

v1::Job WithDefaults(v1::Job job) {
  FillNumbers(&job);
  for (v1::Layer& layer : *job.mutable_model()->mutable_layers()) FillLayer(layer);
  if (job.training().report_every_steps() == 0) job.mutable_training()->set_report_every_steps(10);
  if (!job.has_policy()) job.mutable_policy()->mutable_sync();
  v1::Codec& codec = *job.mutable_codec();
  if (codec.gradients() == v1::ENCODING_UNSPECIFIED) codec.set_gradients(v1::ENCODING_FP32);
  if (codec.values() == v1::ENCODING_UNSPECIFIED) codec.set_values(v1::ENCODING_FP32);
  return job;
}

}  // namespace ballast
