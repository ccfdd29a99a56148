// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/message_mutator.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "google/protobuf/descriptor.h"

namespace ballast {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

template <typename T>
T Pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

std::string RandomBytes(std::mt19937_64& random, size_t size) {
  std::string bytes(size, 0);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Values at the limits of every type and of the services' checks.
uint64_t EdgeInteger(std::mt19937_64& random) {
  return Pick<uint64_t>(random, {0,
                                 1,
                                 2,
                                 3,
                                 99,
                                 100,
                                 1023,
                                 1024,
                                 4095,
                                 4096,
                                 4097,
                                 1 << 20,
                                 (1 << 20) + 1,
                                 600000,
                                 600001,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 uint64_t{1} << 40,
                                 (uint64_t{1} << 40) + 1,
                                 uint64_t{1} << 62,
                                 std::numeric_limits<int64_t>::max(),
                                 uint64_t{1} << 63,
                                 std::numeric_limits<uint64_t>::max()});
}

double EdgeNumber(std::mt19937_64& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return Pick<double>(random, {0, -0.0, 1, -1, 0.5, 1e-45, 1e-38, 3e38, -3e38, 1e300, NAN, kInfinity, -kInfinity});
}

std::string EdgeText(std::mt19937_64& random) {
  switch (random() % 6) {
    case 0:
      return "";
    case 1:
      return std::string(random() % 70000, 'x');
    case 2:
      return RandomBytes(random, random() % 64);
    case 3:
      return std::string(1 + random() % 300, '\0');
    case 4:
      return "hostile";
    default:
      return "w/../%s%n\xff";
  }
}

void SetEdge(Message& message, const FieldDescriptor* field, std::mt19937_64& random) {
  const Reflection& reflection = *message.GetReflection();
  const bool add = field->is_repeated();
  const auto set = [&](auto adder, auto setter, auto value) {
    add ? (reflection.*adder)(&message, field, value) : (reflection.*setter)(&message, field, value);
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return set(&Reflection::AddInt32, &Reflection::SetInt32, static_cast<int32_t>(EdgeInteger(random)));
    case FieldDescriptor::CPPTYPE_INT64:
      return set(&Reflection::AddInt64, &Reflection::SetInt64, static_cast<int64_t>(EdgeInteger(random)));
    case FieldDescriptor::CPPTYPE_UINT32:
      return set(&Reflection::AddUInt32, &Reflection::SetUInt32, static_cast<uint32_t>(EdgeInteger(random)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return set(&Reflection::AddUInt64, &Reflection::SetUInt64, EdgeInteger(random));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return set(&Reflection::AddFloat, &Reflection::SetFloat, static_cast<float>(EdgeNumber(random)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(&Reflection::AddDouble, &Reflection::SetDouble, EdgeNumber(random));
    case FieldDescriptor::CPPTYPE_BOOL:
      return set(&Reflection::AddBool, &Reflection::SetBool, random() % 2 == 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return set(&Reflection::AddEnumValue, &Reflection::SetEnumValue, static_cast<int>(EdgeInteger(random)));
    case FieldDescriptor::CPPTYPE_STRING:
      return set(static_cast<void (Reflection::*)(Message*, const FieldDescriptor*, std::string) const>(
                     &Reflection::AddString),
                 static_cast<void (Reflection::*)(Message*, const FieldDescriptor*, std::string) const>(
                     &Reflection::SetString),
                 EdgeText(random));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Mutate(add ? *reflection.AddMessage(&message, field) : *reflection.MutableMessage(&message, field),
                    random);
  }
}

void MutateRepeated(Message& message, const FieldDescriptor* field, std::mt19937_64& random) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, field);
  const bool messages = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  switch (random() % 4) {
    case 0:
      return reflection.ClearField(&message, field);
    case 1:
      if (size == 0 || !messages) return SetEdge(message, field, random);
      return Mutate(*reflection.MutableRepeatedMessage(&message, field, random() % size), random);
    case 2: {
      // Repeats the first message up to 500 times.
      if (size == 0 || !messages) return SetEdge(message, field, random);
      const std::unique_ptr<Message> first(reflection.GetRepeatedMessage(message, field, 0).New());
      first->CopyFrom(reflection.GetRepeatedMessage(message, field, 0));
      for (uint64_t count = random() % 500; count > 0; --count) {
        reflection.AddMessage(&message, field)->CopyFrom(*first);
      }
      return;
    }
    default:
      return SetEdge(message, field, random);
  }
}

}  // namespace

void Mutate(Message& message, std::mt19937_64& random) {
  const auto* type = message.GetDescriptor();
  if (type->field_count() == 0) return;
  const FieldDescriptor* field = type->field(random() % type->field_count());
  if (field->is_repeated()) return MutateRepeated(message, field, random);
  if (random() % 5 == 0) return message.GetReflection()->ClearField(&message, field);
  SetEdge(message, field, random);
}

std::string HostileBytes(const Message& valid, std::mt19937_64& random) {
  if (random() % 8 == 0) return RandomBytes(random, random() % 300);
  const std::unique_ptr<Message> message(valid.New());
  message->CopyFrom(valid);
  for (uint64_t count = 1 + random() % 3; count > 0; --count) Mutate(*message, random);
  std::string bytes = message->SerializePartialAsString();
  if (random() % 4 != 0 || bytes.empty()) return bytes;
  switch (random() % 3) {
    case 0:
      bytes.resize(random() % bytes.size());
      break;
    case 1:
      bytes[random() % bytes.size()] ^= 1 << random() % 8;
      break;
    default:
      bytes += RandomBytes(random, random() % 50);
  }
  return bytes;
}

}  // namespace ballast
