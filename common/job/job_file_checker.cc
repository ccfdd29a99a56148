// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_file_checker.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <climits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ballast/v1/limits.pb.h"
#include "common/text/nearest_name.h"

namespace ballast {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::Tokenizer;

// Drops tokenizer errors: protobuf's own parser finds and reports the same ones.
class NullErrorCollector : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

// Returns "; did you mean ...?", or the list of all valid names if none is close.
std::string Suggest(absl::string_view got, const std::vector<std::string>& valid) {
  if (valid.empty()) return "; it has no fields";
  const NearestName nearest = FindNearestName(got, valid);
  if (nearest.distance <= std::max<size_t>(2, std::min(got.size(), nearest.name->size()) / 2)) {
    return absl::StrCat("; did you mean \"", *nearest.name, "\"?");
  }
  return absl::StrCat("; valid names are \"", absl::StrJoin(valid, "\", \""), "\"");
}

// The job's fields around a residual are 3 levels deep; each residual adds 2.
constexpr int kMaxDepth = 32;

class Walker {
 public:
  Walker(absl::string_view text, absl::string_view root)
      : input_(text.data(), static_cast<int>(text.size())), tokens_(&input_, &errors_sink_), root_(root) {
    tokens_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    tokens_.set_allow_f_after_float(true);
    tokens_.set_require_space_after_number(false);
    tokens_.set_allow_multiline_strings(true);
    tokens_.Next();
  }

  // Parses fields up to a closing bracket or the end; `path` is empty for the outermost message. Returns false if the
  // syntax is invalid from here on, or messages are nested deeper than any valid job (only residuals nest).
  bool Fields(const Descriptor& type, const std::string& path) {
    if (static_cast<int>(open_.size()) == kMaxDepth) {
      Add(absl::StrCat(path.substr(0, 80), "... is ", kMaxDepth + 1, " messages deep, want at most ", kMaxDepth));
      return false;
    }
    open_.push_back({&type, path, tokens_.previous()});
    while (!At("}") && !At(">") && !AtEnd()) {
      if (tokens_.current().type != Tokenizer::TYPE_IDENTIFIER) return false;
      const std::string name = tokens_.current().text;
      const FieldDescriptor* field = type.FindFieldByName(name);
      if (field == nullptr) {
        NoteMisplaced(name, path);
        const std::string renamed = NewFieldName(type, name);
        Add(absl::StrCat(
            path.empty() ? root_ : path, " has no field \"", name, "\"",
            renamed.empty() ? Suggest(name, FieldNames(type)) : absl::StrCat("; its name is \"", renamed, "\" now")));
        tokens_.Next();
        if (!SkipUnknown()) return false;
      } else {
        tokens_.Next();
        if (!Field(*field, path.empty() ? name : absl::StrCat(path, ".", name))) return false;
      }
      if (At(",") || At(";")) tokens_.Next();
    }
    if (AtEnd() && open_.size() > 1) ReportUnclosed();
    open_.pop_back();
    return true;
  }

  // The unclosed message alone, if there is one: it is the cause of the others.
  std::vector<TextError> errors() const { return unclosed_.has_value() ? std::vector<TextError>{*unclosed_} : errors_; }

 private:
  bool At(absl::string_view text) {
    return tokens_.current().type == Tokenizer::TYPE_SYMBOL && tokens_.current().text == text;
  }
  bool AtEnd() { return tokens_.current().type == Tokenizer::TYPE_END; }

  // Notes the first field that the current message lacks and a message around it has: the } that is missing at the end
  // of the text is probably missing here.
  void NoteMisplaced(const std::string& name, const std::string& path) {
    const bool around = std::any_of(open_.begin(), open_.end() - 1, [&](const OpenMessage& message) {
      return message.type->FindFieldByName(name) != nullptr;
    });
    if (!around || misplaced_.has_value()) return;
    const Tokenizer::Token& opened = open_.back().opened;
    misplaced_ = {
        tokens_.current().line + 1, tokens_.current().column + 1,
        absl::StrCat("a } is missing: ", path, ", opened at line ", opened.line + 1, ", has no field \"", name, "\"")};
  }

  void ReportUnclosed() {
    if (unclosed_.has_value()) return;
    const OpenMessage& message = open_.back();
    unclosed_ = misplaced_.has_value()
                    ? *misplaced_
                    : TextError{message.opened.line + 1, message.opened.column + 1,
                                absl::StrCat(message.path, " is opened here and never closed, want }")};
  }

  static std::vector<std::string> FieldNames(const Descriptor& type) {
    std::vector<std::string> names;
    for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
    return names;
  }

  void Add(std::string message) {
    errors_.push_back({tokens_.current().line + 1, tokens_.current().column + 1, std::move(message)});
  }

  // Called with the token after the field's name as the current one; `path` ends with that name.
  bool Field(const FieldDescriptor& field, const std::string& path) {
    const bool is_message = field.type() == FieldDescriptor::TYPE_MESSAGE;
    if (At(":")) {
      tokens_.Next();
    } else if (!is_message) {
      return false;
    }
    if (!At("[") || !field.is_repeated()) return Value(field, path);
    tokens_.Next();
    while (!At("]")) {
      if (!Value(field, path)) return false;
      if (At(",")) tokens_.Next();
    }
    tokens_.Next();
    return true;
  }

  bool Value(const FieldDescriptor& field, const std::string& path) {
    if (field.type() != FieldDescriptor::TYPE_MESSAGE) return Scalar(field, path);
    if (!At("{") && !At("<")) {
      Add(absl::StrCat(path, " is ", Got(), ", want { ... }"));
      return SkipScalar();
    }
    const char* const close = At("{") ? "}" : ">";
    tokens_.Next();
    if (!Fields(*field.message_type(), path)) return false;
    if (!At(close)) return false;
    tokens_.Next();
    return true;
  }

  bool Scalar(const FieldDescriptor& field, const std::string& path) {
    if (At("{") || At("<") || At("[")) {
      Add(absl::StrCat(path, " is ", Got(), ", want ", WantedValue(field)));
      return SkipBracketed();
    }
    if (const EnumDescriptor* type = field.enum_type();
        type != nullptr && tokens_.current().type == Tokenizer::TYPE_IDENTIFIER) {
      CheckEnumName(*type, path);
    } else if (!Fits(field)) {
      Add(absl::StrCat(path, " is ", Got(), ", want ", WantedValue(field)));
    }
    return SkipScalar();
  }

  void CheckEnumName(const EnumDescriptor& type, const std::string& path) {
    const std::string& name = tokens_.current().text;
    if (type.FindValueByName(name) != nullptr) return;
    std::vector<std::string> names;
    for (int i = 0; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
    // Finds ENCODING_INT8 for int8, as flags and people write it, and BF16 for bf16.
    const std::string upper = absl::AsciiStrToUpper(name), ending = absl::StrCat("_", upper);
    const auto meant = std::find_if(names.begin(), names.end(), [&](absl::string_view full) {
      return full == upper || absl::EndsWith(full, ending);
    });
    Add(absl::StrCat(path, " has no value \"", name, "\"", Suggest(meant == names.end() ? name : *meant, names)));
  }

  // Returns whether the value that begins at the current token has the field's type.
  bool Fits(const FieldDescriptor& field) {
    const Tokenizer::Token& token = tokens_.current();
    const bool negative = At("-");
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return token.type == Tokenizer::TYPE_STRING;
      case FieldDescriptor::CPPTYPE_BOOL:
        return (token.type == Tokenizer::TYPE_IDENTIFIER &&
                (token.text == "true" || token.text == "false" || token.text == "True" || token.text == "False" ||
                 token.text == "t" || token.text == "f")) ||
               (token.type == Tokenizer::TYPE_INTEGER && (token.text == "0" || token.text == "1"));
      case FieldDescriptor::CPPTYPE_FLOAT:
      case FieldDescriptor::CPPTYPE_DOUBLE:
        // inf and nan are identifiers; ParseJob's validation then reports the valid range.
        return negative || token.type == Tokenizer::TYPE_FLOAT || token.type == Tokenizer::TYPE_INTEGER ||
               token.text == "inf" || token.text == "nan";
      case FieldDescriptor::CPPTYPE_UINT32:
      case FieldDescriptor::CPPTYPE_UINT64:
        return token.type == Tokenizer::TYPE_INTEGER;
      default:
        return negative || token.type == Tokenizer::TYPE_INTEGER;
    }
  }

  std::string Got() {
    if (AtEnd()) return "missing";
    if (At("{") || At("<")) return "{ ... }";
    if (At("[")) return "[ ... ]";
    if (At("-")) return "a negative number";
    return tokens_.current().text.substr(0, 80);
  }

  // Skips a number, a name, or adjacent quoted strings.
  bool SkipScalar() {
    if (At("-")) tokens_.Next();
    if (tokens_.current().type == Tokenizer::TYPE_STRING) {
      while (tokens_.current().type == Tokenizer::TYPE_STRING) tokens_.Next();
      return true;
    }
    if (AtEnd() || tokens_.current().type == Tokenizer::TYPE_SYMBOL) return false;
    tokens_.Next();
    return true;
  }

  // Skips the value of an unknown field.
  bool SkipUnknown() {
    if (At(":")) tokens_.Next();
    return At("{") || At("<") || At("[") ? SkipBracketed() : SkipScalar();
  }

  bool SkipBracketed() {
    int64_t depth = 0;
    do {
      if (AtEnd()) return false;
      if (At("{") || At("<") || At("[")) ++depth;
      if (At("}") || At(">") || At("]")) --depth;
      tokens_.Next();
    } while (depth > 0);
    return true;
  }

  NullErrorCollector errors_sink_;
  google::protobuf::io::ArrayInputStream input_;
  Tokenizer tokens_;
  const std::string root_;
  std::vector<TextError> errors_;
  // A message around the current token, and the bracket that opened it (for the outermost message: nothing).
  struct OpenMessage {
    const Descriptor* type;
    std::string path;
    Tokenizer::Token opened;
  };
  std::vector<OpenMessage> open_;
  std::optional<TextError> misplaced_;
  std::optional<TextError> unclosed_;
};

}  // namespace

std::vector<TextError> CheckMessageText(absl::string_view text, const Descriptor& type, absl::string_view root,
                                        absl::string_view path) {
  Walker walker(text, root);
  walker.Fields(type, std::string(path));
  return walker.errors();
}

namespace {

constexpr size_t kMaxReported = 5;

class ErrorList : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    errors_.push_back({line + 1, column + 1, message});
  }
  const std::vector<TextError>& errors() const { return errors_; }

 private:
  std::vector<TextError> errors_;
};

absl::Status ToStatus(absl::string_view file_name, const std::vector<TextError>& errors) {
  std::string text;
  const size_t shown = std::min(errors.size(), kMaxReported);
  for (size_t i = 0; i < shown; ++i) {
    const TextError& error = errors[i];
    absl::StrAppend(&text, i == 0 ? "" : "\n", file_name, ":", error.line, ":", error.column, ": ", error.message);
  }
  if (shown < errors.size()) absl::StrAppend(&text, "\nand ", errors.size() - shown, " more");
  return absl::InvalidArgumentError(text);
}

}  // namespace

absl::Status ParseMessageText(absl::string_view text, absl::string_view name, absl::string_view root,
                              google::protobuf::Message* message, google::protobuf::TextFormat::ParseInfoTree* places) {
  const Descriptor* const type = message->GetDescriptor();
  const std::vector<TextError> faults = CheckMessageText(text, *type, root);
  if (!faults.empty()) return ToStatus(name, faults);
  ErrorList errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  if (places != nullptr) parser.WriteLocationsTo(places);
  if (!parser.ParseFromString(std::string(text), message)) return ToStatus(name, errors.errors());
  return absl::OkStatus();
}

std::string NewFieldName(const Descriptor& type, absl::string_view old_name) {
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->options().GetExtension(v1::old_name) == old_name) return type.field(i)->name();
  }
  return "";
}

std::string WantedValue(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return "a quoted string";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrCat("a name in enum ", field.enum_type()->name());
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "a whole number of at least 0";
    default:
      return "a whole number";
  }
}

}  // namespace ballast
