// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_fields.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/job/job_file_checker.h"
#include "common/text/nearest_name.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace ballast {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;

// Elements of a repeated field that suggestions look at.
constexpr int kMaxElements = 64;
// Limit on the names of a path; no valid job is as deep.
constexpr size_t kMaxDepth = 32;

// One field between the dots of a path.
struct PathPart {
  std::string name;
  bool indexed = false;
  std::string index;
};

absl::StatusOr<std::vector<PathPart>> SplitPath(absl::string_view path) {
  std::vector<PathPart> parts;
  for (absl::string_view word : absl::StrSplit(path, '.')) {
    const size_t bracket = word.find('[');
    PathPart part;
    part.name = absl::StrReplaceAll(word.substr(0, bracket), {{"-", "_"}});
    part.indexed = bracket != absl::string_view::npos;
    if (part.indexed) {
      absl::string_view index = word.substr(bracket + 1);
      if (!absl::ConsumeSuffix(&index, "]")) part.name.clear();
      part.index = std::string(index);
    }
    if (part.name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "got the path \"", path, "\", want names with dots between them, such as model.layers[0].dense.units"));
    }
    parts.push_back(std::move(part));
    if (parts.size() > kMaxDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat("got the path \"", path.substr(0, 80), "...\", want at most ", kMaxDepth, " names"));
    }
  }
  return parts;
}

std::string Join(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

bool IsMessage(const FieldDescriptor& field) { return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE; }

class ErrorText : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string& message) override {
    if (text.empty()) text = message;
  }
  std::string text;
};

// Returns the value as protobuf's text format writes it.
std::string ValueText(const FieldDescriptor& field, absl::string_view value) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(value);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      if (stripped.size() >= 2 && stripped.front() == '"' && stripped.back() == '"') return std::string(stripped);
      return absl::StrCat("\"", absl::Utf8SafeCEscape(value), "\"");
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return absl::StartsWith(stripped, "{") ? std::string(stripped) : absl::StrCat("{ ", stripped, "\n}");
    case FieldDescriptor::CPPTYPE_ENUM:
      for (int i = 0; i < field.enum_type()->value_count(); ++i) {
        const std::string& name = field.enum_type()->value(i)->name();
        if (absl::EqualsIgnoreCase(name, stripped) ||
            absl::EqualsIgnoreCase(name, absl::StrCat(field.enum_type()->name(), "_", stripped))) {
          return name;
        }
      }
      return absl::AsciiStrToUpper(stripped);
    case FieldDescriptor::CPPTYPE_BOOL:
      return absl::AsciiStrToLower(stripped);
    default:
      return std::string(stripped);
  }
}

// Parses "NAME: TEXT" into `fresh`, which is like the message that has the field. `path` is the field's.
absl::Status Parse(const FieldDescriptor& field, const std::string& text, absl::string_view value,
                   const std::string& path, Message& fresh) {
  const auto refuse = [&](absl::string_view want) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": got \"", absl::CEscape(value.substr(0, 80)), "\", want ", want));
  };
  const std::string want = IsMessage(field) ? "fields as in a job file" : WantedValue(field);
  const std::string line = absl::StrCat(field.name(), ": ", text);
  const size_t dot = path.rfind('.');
  const Descriptor* const type = fresh.GetDescriptor();
  const std::vector<TextError> errors =
      CheckMessageText(line, *type, "the job", dot == std::string::npos ? "" : path.substr(0, dot));
  // Names inside a message, and of an enum, have errors that say more.
  if (!errors.empty() && (IsMessage(field) || field.enum_type() != nullptr)) {
    return absl::InvalidArgumentError(errors[0].message);
  }
  if (!errors.empty()) return refuse(want);
  ErrorText error;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(line, &fresh)) return refuse(absl::StrCat(want, " (", error.text, ")"));
  std::vector<const FieldDescriptor*> set;
  fresh.GetReflection()->ListFields(fresh, &set);
  // A value cannot go on with other fields.
  const bool alone = std::all_of(set.begin(), set.end(), [&](const FieldDescriptor* one) { return one == &field; });
  return alone ? absl::OkStatus() : refuse(want);
}

// Returns the position of an element, the field's size to append one.
absl::StatusOr<int> ElementAt(const PathPart& part, int size, const std::string& path) {
  int index = 0;
  if (part.index == "+") return size;
  if (absl::SimpleAtoi(part.index, &index)) {
    if (index < 0) index += size;
    if (index >= 0 && index <= size) return index;
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": got index ", part.index, ", want 0 to ", size,
                                                 " or +: it has ", size, " elements, and ", size, " or + adds one"));
}

absl::Status Unknown(const Message& root, const Message& at, const std::string& path, const std::string& name) {
  const std::string what = absl::StrCat(path.empty() ? "the job" : path, " has no field \"", name, "\"");
  const Descriptor* const type = at.GetDescriptor();
  if (const std::string renamed = NewFieldName(*type, name); !renamed.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(what, "; its name is \"", renamed, "\" now"));
  }
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  const NearestName here = FindNearestName(name, names);
  const NearestField anywhere = FindNearestField(root, name);
  if (here.name != nullptr && here.distance <= std::max<size_t>(1, name.size() / 3) &&
      (anywhere.path.empty() || here.distance <= anywhere.distance)) {
    return absl::InvalidArgumentError(absl::StrCat(what, "; did you mean ", Join(path, *here.name), "?"));
  }
  if (!anywhere.path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(what, "; did you mean ", anywhere.path, "?"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, names.empty() ? "; it has no fields" : "; valid names are ", absl::StrJoin(names, ", ")));
}

// Replaces the field, or one of its elements, by the parsed one.
void Take(const FieldDescriptor& field, bool element, int index, const Message& fresh, Message& parent) {
  const Reflection* const reflection = parent.GetReflection();
  if (!element) reflection->ClearField(&parent, &field);
  parent.MergeFrom(fresh);
  if (!element || index + 1 == reflection->FieldSize(parent, &field)) return;
  reflection->SwapElements(&parent, &field, index, reflection->FieldSize(parent, &field) - 1);
  reflection->RemoveLast(&parent, &field);
}

// Walks one path through a message.
class Setter {
 public:
  explicit Setter(Message& root) : root_(root), at_(&root) {}

  absl::StatusOr<std::string> Set(absl::string_view path, absl::string_view value) {
    absl::StatusOr<std::vector<PathPart>> parts = SplitPath(path);
    if (!parts.ok()) return parts.status();
    for (const PathPart& part : absl::MakeConstSpan(*parts).first(parts->size() - 1)) {
      if (absl::Status status = Descend(part); !status.ok()) return status;
    }
    if (absl::Status status = Assign(parts->back(), value); !status.ok()) return status;
    return path_;
  }

 private:
  // Finds the field and adds its name, and its index if it has one, to the path. `index_` is -1 without an index.
  absl::StatusOr<const FieldDescriptor*> Find(const PathPart& part) {
    const FieldDescriptor* const field = at_->GetDescriptor()->FindFieldByName(part.name);
    if (field == nullptr) return Unknown(root_, *at_, path_, part.name);
    path_ = Join(path_, part.name);
    index_ = -1;
    if (!part.indexed || field->is_map()) return field;
    if (!field->is_repeated()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": got index ", part.index, ", want none: it is no repeated field"));
    }
    const absl::StatusOr<int> index = ElementAt(part, at_->GetReflection()->FieldSize(*at_, field), path_);
    if (!index.ok()) return index.status();
    index_ = *index;
    absl::StrAppend(&path_, "[", index_, "]");
    return field;
  }

  absl::Status Descend(const PathPart& part) {
    const absl::StatusOr<const FieldDescriptor*> found = Find(part);
    if (!found.ok()) return found.status();
    const FieldDescriptor& field = **found;
    const Reflection* const reflection = at_->GetReflection();
    if (!IsMessage(field) || field.is_map()) {
      return absl::InvalidArgumentError(absl::StrCat(path_, " has no fields, want ", path_, "=VALUE"));
    }
    if (field.is_repeated() && index_ < 0) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": got no index, want one, such as ", path_, "[0]"));
    }
    if (!field.is_repeated()) {
      at_ = reflection->MutableMessage(at_, &field);
    } else if (index_ == reflection->FieldSize(*at_, &field)) {
      at_ = reflection->AddMessage(at_, &field);
    } else {
      at_ = reflection->MutableRepeatedMessage(at_, &field, index_);
    }
    return absl::OkStatus();
  }

  absl::Status Assign(const PathPart& part, absl::string_view value) {
    const absl::StatusOr<const FieldDescriptor*> found = Find(part);
    if (!found.ok()) return found.status();
    const FieldDescriptor& field = **found;
    std::string text;
    if (field.is_map() && part.indexed) {
      const FieldDescriptor* const element = field.message_type()->map_value();
      text =
          absl::StrCat("{ key: \"", absl::Utf8SafeCEscape(part.index), "\" value: ", ValueText(*element, value), " }");
    } else {
      const bool list = field.is_repeated() && index_ < 0 && absl::StartsWith(value, "[");
      text = list ? std::string(value) : ValueText(field, value);
    }
    const std::unique_ptr<Message> fresh(at_->New());
    if (absl::Status status = Parse(field, text, value, path_, *fresh); !status.ok()) return status;
    if (field.is_map() && part.indexed) {
      at_->MergeFrom(*fresh);
      absl::StrAppend(&path_, "[", part.index, "]");
    } else {
      Take(field, index_ >= 0, index_, *fresh, *at_);
    }
    return absl::OkStatus();
  }

  Message& root_;
  Message* at_;
  std::string path_;
  int index_ = -1;
};

// Clears the repeated fields in `to` that `from` has.
void ClearListsOf(const Message& from, Message& to) {
  std::vector<const FieldDescriptor*> fields;
  from.GetReflection()->ListFields(from, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_repeated()) {
      to.GetReflection()->ClearField(&to, field);
    } else if (IsMessage(*field)) {
      google::protobuf::Message* const inner = to.GetReflection()->MutableMessage(&to, field);
      ClearListsOf(from.GetReflection()->GetMessage(from, field), *inner);
    }
  }
}

std::string Difference(const Message& got, const Message& want, const std::string& path);

// The value of a field, or of one of its elements.
std::string Shown(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection* const reflection = message.GetReflection();
  const bool absent = field.is_repeated()    ? index >= reflection->FieldSize(message, &field)
                      : field.has_presence() ? !reflection->HasField(message, &field)
                                             : false;
  if (absent) return "nothing";
  TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintFieldValueToString(message, &field, field.is_repeated() ? index : -1, &text);
  return IsMessage(field) ? absl::StrCat("{ ", text, "}") : text;
}

// Returns the first difference in a field, whose path is `path`; empty if there is none.
std::string DifferenceIn(const FieldDescriptor& field, const std::string& path, const Message& got,
                         const Message& want) {
  const Reflection* const reflection = got.GetReflection();
  if (!field.is_repeated()) {
    if (IsMessage(field) && reflection->HasField(got, &field) && reflection->HasField(want, &field)) {
      return Difference(reflection->GetMessage(got, &field), reflection->GetMessage(want, &field), path);
    }
    const std::string is = Shown(got, field, -1), was = Shown(want, field, -1);
    return is == was ? "" : absl::StrCat(path, ": got ", is, ", want ", was);
  }
  const int got_size = reflection->FieldSize(got, &field), want_size = reflection->FieldSize(want, &field);
  for (int i = 0; i < std::max(got_size, want_size); ++i) {
    const std::string element = absl::StrCat(path, "[", i, "]");
    if (IsMessage(field) && i < got_size && i < want_size) {
      const std::string inner = Difference(reflection->GetRepeatedMessage(got, &field, i),
                                           reflection->GetRepeatedMessage(want, &field, i), element);
      if (!inner.empty()) return inner;
      continue;
    }
    const std::string is = Shown(got, field, i), was = Shown(want, field, i);
    if (is != was) return absl::StrCat(element, ": got ", is, ", want ", was);
  }
  return "";
}

std::string Difference(const Message& got, const Message& want, const std::string& path) {
  const Descriptor* const type = got.GetDescriptor();
  for (int i = 0; i < type->real_oneof_decl_count(); ++i) {
    const auto* const oneof = type->oneof_decl(i);
    const FieldDescriptor* const is = got.GetReflection()->GetOneofFieldDescriptor(got, oneof);
    const FieldDescriptor* const was = want.GetReflection()->GetOneofFieldDescriptor(want, oneof);
    if (is == was) continue;
    return absl::StrCat(path.empty() ? type->name() : path, ": got ", is == nullptr ? "nothing" : is->name(), ", want ",
                        was == nullptr ? "nothing" : was->name());
  }
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    std::string difference = DifferenceIn(*field, Join(path, field->name()), got, want);
    if (!difference.empty()) return difference;
  }
  return "";
}

bool AreInitials(absl::string_view name, absl::string_view field) {
  std::string initials;
  for (absl::string_view word : absl::StrSplit(field, '_')) absl::StrAppend(&initials, word.substr(0, 1));
  return initials.size() > 1 && initials == name;
}

// Looks at every field below a message.
class FieldSearch {
 public:
  explicit FieldSearch(absl::string_view name) : name_(absl::StrReplaceAll(name, {{"-", "_"}})) {}

  // `message` is null below a field that is not set. `unset` counts such fields on the way.
  void Look(const Descriptor& type, const Message* message, const std::string& path, int unset) {
    if (std::find(types_.begin(), types_.end(), &type) != types_.end()) return;
    types_.push_back(&type);
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor* const field = type.field(i);
      const std::string below = Join(path, field->name());
      Compare(*field, below, unset);
      if (IsMessage(*field) && !field->is_map()) LookInto(*field, message, below, unset);
    }
    types_.pop_back();
  }

  NearestField best() const { return {path_, distance_}; }

 private:
  void LookInto(const FieldDescriptor& field, const Message* message, const std::string& path, int unset) {
    const Descriptor* const type = field.message_type();
    if (message == nullptr || (!field.is_repeated() && !message->GetReflection()->HasField(*message, &field))) {
      return Look(*type, nullptr, field.is_repeated() ? path + "[0]" : path, unset + 1);
    }
    const Reflection* const reflection = message->GetReflection();
    if (!field.is_repeated()) return Look(*type, &reflection->GetMessage(*message, &field), path, unset);
    const int elements = std::min(reflection->FieldSize(*message, &field), kMaxElements);
    if (elements == 0) return Look(*type, nullptr, path + "[0]", unset + 1);
    for (int i = 0; i < elements; ++i) {
      Look(*type, &reflection->GetRepeatedMessage(*message, &field, i), absl::StrCat(path, "[", i, "]"), unset);
    }
  }

  void Compare(const FieldDescriptor& field, const std::string& path, int unset) {
    const bool initials = AreInitials(name_, field.name());
    const size_t distance = initials ? 0 : FindNearestName(name_, {field.name()}).distance;
    if (distance > std::min(name_.size(), field.name().size()) / 3) return;
    const Rank rank(distance, initials, unset, static_cast<int>(types_.size()));
    if (!path_.empty() && rank >= rank_) return;
    path_ = path;
    rank_ = rank;
    distance_ = distance;
  }

  // Less is better: distance, initials only, unset messages on the way, depth.
  using Rank = std::tuple<size_t, bool, int, int>;

  const std::string name_;
  // Around the current field; a type does not occur inside itself.
  std::vector<const Descriptor*> types_;
  std::string path_;
  Rank rank_;
  size_t distance_ = 0;
};

}  // namespace

absl::StatusOr<std::string> SetField(Message& message, absl::string_view setting) {
  const size_t equals = setting.find('=');
  if (equals == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("got \"", setting, "\", want FIELD=VALUE, such as training.epochs=3"));
  }
  return Setter(message).Set(setting.substr(0, equals), setting.substr(equals + 1));
}

NearestField FindNearestField(const Message& message, absl::string_view name) {
  FieldSearch search(name);
  const Descriptor* const type = message.GetDescriptor();
  search.Look(*type, &message, "", 0);
  return search.best();
}

std::string FirstDifference(const Message& got, const Message& want) { return Difference(got, want, ""); }

void MergeOver(const Message& from, Message& to) {
  ClearListsOf(from, to);
  to.MergeFrom(from);
}

}  // namespace ballast
