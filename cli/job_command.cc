// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/text_format.h>

#include <vector>

#include "absl/strings/str_format.h"
#include "cli/command/command.h"
#include "common/job/job_source.h"
#include "common/program/arguments.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast job JOB [flags]\n\n"
    "Prints the job in the text file JOB, or in standard input if JOB is -, as it would run: with the flags applied,\n"
    "absolute paths and defaults. The output is a job file.\n\n";

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"set", "FIELD=VALUE", "Set a field of the job, such as training.epochs=3; may be repeated.", false, true},
      {"set-file", "FILE", "Merge a file over the job, before --set; its lists replace the job's; may be repeated.",
       false, true},
  };
  return *flags;
}

}  // namespace

const std::vector<FlagSpec>& JobFlags() { return Flags(); }

CommandResult JobCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  if (arguments->positional().size() != 1) {
    return Fail(err,
                absl::InvalidArgumentError(absl::StrFormat("job: got %d job files, want exactly one; see --help",
                                                           arguments->positional().size())),
                kExitBadInput);
  }
  const absl::StatusOr<v1::Job> job = ResolveJob({.path = arguments->positional()[0],
                                                  .set_files = arguments->GetAll("set-file"),
                                                  .sets = arguments->GetAll("set")},
                                                 /*workers=*/0);
  if (!job.ok()) return Fail(err, job.status(), kExitBadInput);
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(WithDefaults(*job), &text);
  out << text << std::flush;
  return kExitSuccess;
}

}  // namespace ballast
